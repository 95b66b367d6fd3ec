-- Health of a DisaggregatedInference for Argo CD, by its conditions. It never disagrees with kstatus: Healthy is Current,
-- Degraded is Failed, Progressing is InProgress or Terminating. Why it is so is told in docs/gitops.md.
local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is_true(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end

if obj.metadata.deletionTimestamp ~= nil then
  return {status = "Progressing", message = "it is being deleted"}
end
if status.observedGeneration ~= obj.metadata.generation or conditions["Ready"] == nil then
  return {status = "Progressing", message = "the operator has not seen the present spec yet"}
end
if is_true("Stalled") then
  return {status = "Degraded", message = conditions["Stalled"].message}
end
if is_true("Ready") then
  -- So is a decode that is scaled to zero by wish: Argo CD would wait for ever for one that is Suspended.
  return {status = "Healthy", message = conditions["Ready"].message}
end
if is_true("Degraded") then
  return {status = "Progressing", message = conditions["Degraded"].message}
end
return {status = "Progressing", message = conditions["Ready"].message}

"""The arguments of `vllm serve`: those that the operator owns, then the user's."""

from disagg_operator.api.names import PORT_HTTP, Component
from disagg_operator.build.engine_probes import derive_shutdown_timeout
from disagg_operator.build.inputs import Context
from disagg_operator.build.model_source import ModelSource, derive_model_name
from disagg_operator.build.roles import role_spec
from disagg_operator.build.transfer import build_transfer_config, dump_transfer_config


def build_engine_args(context: Context, role: Component, source: ModelSource, kv_revision: str) -> list[str]:
    """All arguments of a role's engines. Every one is one list entry, so no quoting can break it."""
    spec, wish = context.spec, role_spec(context.spec, role)
    return [
        source.argument,
        *source.flags,
        "--served-model-name",
        derive_model_name(spec.model),
        *(["--host", "::"] if context.facts.ip_family == "IPv6" else []),
        "--port",
        str(PORT_HTTP),
        *_build_parallelism(context, role),
        "--kv-transfer-config",
        dump_transfer_config(build_transfer_config(context, role, kv_revision)),
        "--shutdown-timeout",
        str(derive_shutdown_timeout(wish)),
        *spec.engine.args,
        *wish.args,
    ]


def _build_parallelism(context: Context, role: Component) -> list[str]:
    parallelism = role_spec(context.spec, role).parallelism
    sizes = {
        "--tensor-parallel-size": parallelism.tensor,
        "--pipeline-parallel-size": parallelism.pipeline,
        "--data-parallel-size": parallelism.data,
    }
    args = [text for flag, size in sizes.items() if size > 1 for text in (flag, str(size))]
    if parallelism.nodes > 1:
        # LeaderWorkerSet sets both variables in every pod of a group.
        args += ["--nnodes", str(parallelism.nodes), "--node-rank", "$(LWS_WORKER_INDEX)"]
        args += ["--master-addr", "$(LWS_LEADER_ADDRESS)"]
    return args

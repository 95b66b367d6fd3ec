module disagg.io/hack/tools/pause

go 1.26.0

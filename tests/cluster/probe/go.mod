module disagg.io/tests/cluster/probe

go 1.26.0

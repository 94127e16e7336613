module github.com/verbena-rdma/verbena/examples

go 1.26.0

require github.com/verbena-rdma/verbena v0.0.0

require (
	github.com/panjf2000/gnet/v2 v2.9.7
	golang.org/x/sys v0.50.0
)

require (
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap v1.27.0 // indirect
	gopkg.in/natefinch/lumberjack.v2 v2.2.1 // indirect
)

replace github.com/verbena-rdma/verbena => ../

module holdfast/bench/peers

go 1.26.0

require holdfast v0.0.0

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0 // indirect
	github.com/panjf2000/ants/v2 v2.11.3 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap v1.27.0 // indirect
	golang.org/x/sync v0.11.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	gopkg.in/natefinch/lumberjack.v2 v2.2.1 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

require (
	github.com/gorilla/websocket v1.5.0 // indirect
	github.com/mochi-mqtt/server/v2 v2.7.9
	github.com/panjf2000/gnet/v2 v2.9.7
	github.com/rs/xid v1.4.0 // indirect
)

replace holdfast => ../..

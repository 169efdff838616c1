package main

import (
	_ "github.com/VictoriaMetrics/metrics"
	_ "github.com/alecthomas/kong"
	_ "github.com/cespare/xxhash/v2"
	_ "github.com/getkin/kin-openapi/openapi3"
	_ "github.com/getkin/kin-openapi/openapi3filter"
	_ "github.com/getkin/kin-openapi/routers/gorillamux"
	_ "github.com/goccy/go-yaml"
	_ "github.com/golang-jwt/jwt/v5"
	_ "github.com/panjf2000/gnet/v2"
	_ "github.com/valyala/fastjson"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sys/unix"
)

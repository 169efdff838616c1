// Command mochi runs the MQTT broker mochi-mqtt, in memory, open to everybody, with its limits raised so far that it refuses nothing at
// the loads it is compared under. It prints its address when it is ready, and ends with its standard input.
package main

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address of the TCP port")
	flag.Parse()
	if err := run(*listen, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mochi:", err)
		os.Exit(1)
	}
}

// run serves until in ends.
func run(listen string, in io.Reader, out io.Writer) error {
	limits := mqtt.NewDefaultServerCapabilities()
	limits.MaximumClientWritesPending = 1 << 20
	limits.ReceiveMaximum = math.MaxUint16
	limits.MaximumInflight = math.MaxUint16
	server := mqtt.New(&mqtt.Options{Capabilities: limits, Logger: slog.New(slog.DiscardHandler)})
	if err := server.AddHook(new(auth.AllowHook), nil); err != nil {
		return err
	}
	port := listeners.NewTCP(listeners.Config{ID: "tcp", Address: listen})
	if err := server.AddListener(port); err != nil {
		return err
	}
	if err := server.Serve(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, port.Address()); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	return server.Close()
}

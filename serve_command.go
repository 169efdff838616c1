package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// configFlags are the flags of every command that reads a node's configuration. Pointers tell "not given" from "given empty".
type configFlags struct {
	File           string   `name:"config" short:"c" placeholder:"FILE" help:"YAML file of settings (also HOLDFAST_CONFIG)."`
	Set            []string `sep:"none" placeholder:"SECTION.KEY=VALUE" help:"Set any setting; may be repeated. holdfast config lists them."`
	Data           *string  `placeholder:"DIR" help:"Data directory (store.dir)."`
	Listen         *string  `placeholder:"HOST:PORT" help:"TCP port for clients (tcp.listen)."`
	HTTP           *string  `name:"http" placeholder:"HOST:PORT" help:"HTTP port for the back end and operators (http.listen)."`
	Auth           *string  `placeholder:"MODE" help:"none or jwt (auth.mode)."`
	JWTKey         []string `name:"jwt-key" placeholder:"ALG:FILE" help:"Key that tokens may be signed with; may be repeated (auth.keys)."`
	Sync           *string  `placeholder:"MODE" help:"always or interval (store.sync)."`
	LogLevel       *string  `placeholder:"LEVEL" help:"debug, info, warn or error (log.level)."`
	InsecureNoAuth bool     `help:"Allow ports beyond loopback without authentication (auth.insecure_no_auth)."`
}

// load reads the configuration with these flags on top. A mistake in it is a usage error.
func (f *configFlags) load(environ []string) (*Config, error) {
	values, err := f.values()
	if err != nil {
		return nil, &exitCode{exitUsage, err}
	}
	c, err := loadConfig(configSources{file: f.File, environ: environ, flags: values})
	if err != nil {
		return nil, &exitCode{exitUsage, fmt.Errorf("the configuration does not hold:\n  %s",
			strings.ReplaceAll(err.Error(), "\n", "\n  "))}
	}
	return c, nil
}

// values lists the settings given by flags: --set first, so that a named flag wins.
func (f *configFlags) values() ([]flagValue, error) {
	var values []flagValue
	for _, s := range f.Set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, fmt.Errorf("--set %s: write --set section.key=value", s)
		}
		values = append(values, flagValue{key, value, "--set"})
	}
	for _, named := range []struct {
		flag, key string
		value     *string
	}{
		{"--data", "store.dir", f.Data},
		{"--listen", "tcp.listen", f.Listen},
		{"--http", "http.listen", f.HTTP},
		{"--auth", "auth.mode", f.Auth},
		{"--sync", "store.sync", f.Sync},
		{"--log-level", "log.level", f.LogLevel},
	} {
		if named.value != nil {
			values = append(values, flagValue{named.key, *named.value, named.flag})
		}
	}
	if len(f.JWTKey) > 0 {
		values = append(values, flagValue{"auth.keys", strings.Join(f.JWTKey, ","), "--jwt-key"})
	}
	if f.InsecureNoAuth {
		values = append(values, flagValue{"auth.insecure_no_auth", "true", "--insecure-no-auth"})
	}
	return values, nil
}

// serveCommand runs a node until a signal ends it.
type serveCommand struct {
	configFlags `embed:""`
}

// Help is the long help of the command.
func (serveCommand) Help() string {
	return `Runs one node with its embedded store (mode solo). No other service is needed.

Examples:
  holdfast serve                                   # data in ./holdfast-data, TCP 127.0.0.1:7700, HTTP 127.0.0.1:7780
  holdfast serve --data /var/lib/holdfast --jwt-key EdDSA:/etc/holdfast/token.pub.pem
  holdfast serve --config holdfast.yaml --set ack.timeout=5s
  HOLDFAST_ACK_TIMEOUT=5s holdfast serve

Every setting with its meaning: holdfast config
SIGTERM drains: clients are told to reconnect, what is in flight is waited for, and nothing accepted is lost.`
}

// Run serves.
func (s *serveCommand) Run(ctx context.Context, term *terminal) error {
	c, err := s.load(term.environ)
	if err != nil {
		return err
	}
	log := newLogger(c.Log, term.err)
	if c.Auth.Mode == "none" && !isLoopback(c.TCP.Listen) {
		log.Warn("anyone who reaches the TCP port can read any user's messages: auth.insecure_no_auth is set", "listen", c.TCP.Listen)
	}
	return runServe(ctx, c, log)
}

// newLogger makes the log of a node.
func newLogger(c LogConfig, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		panic(fmt.Sprintf("log level %q: %v", c.Level, err)) // checked when it was set
	}
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// readInput reads a file, or standard input for "-".
func readInput(term *terminal, path string) ([]byte, error) {
	if path == "-" {
		data, err := io.ReadAll(term.in)
		if err != nil {
			return nil, fmt.Errorf("reading standard input: %w", err)
		}
		return data, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the payload: %w", err)
	}
	return data, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"holdfast/bench"
)

// exitVerdict is what a run ends with that came to a verdict, and the verdict is no.
const exitVerdict = 3

// benchCommand is the load generator: one command a scenario.
type benchCommand struct {
	Fanout   benchFanout   `cmd:"" help:"Users online, publishers push to them: deliveries a second, server CPU, latencies."`
	Publish  benchPublish  `cmd:"" help:"How fast publishers are answered when the answer means: on the disk."`
	Idle     benchIdle     `cmd:"" help:"Connections that only keep alive: server memory and CPU for each, at several sizes."`
	Storm    benchStorm    `cmd:"" help:"Everybody logs in at once, with a backlog or without: how fast, and what it does to others."`
	Slow     benchSlow     `cmd:"" help:"Some readers read nothing for a time: the latency of the others."`
	Ackstorm benchAckstorm `cmd:"" help:"Some clients acknowledge nothing for a time, then everything at once."`
	Recovery benchRecovery `cmd:"" help:"A kill -9 over a full store: time until ready, memory, and whether all is there."`
	Verify   benchVerify   `cmd:"" help:"A load among faults: a verdict on lost, duplicated, out of order, wrong user."`
	Worker   benchWorker   `cmd:"" hidden:"" help:"A further process of the generator; it is started by the others."`
}

// benchFlags are the flags all scenarios share.
type benchFlags struct {
	Server     string        `env:"HOLDFAST_SERVER" default:"127.0.0.1:7700" placeholder:"HOST:PORT" help:"TCP port of the gateway (${default}; also HOLDFAST_SERVER)."`
	API        string        `name:"api" env:"HOLDFAST_API" default:"http://127.0.0.1:7780" placeholder:"URL" help:"HTTP port of the gateway (${default}; also HOLDFAST_API)."`
	TargetURL  string        `name:"target" placeholder:"URL" help:"What to drive instead of --server: holdfast://HOST:PORT; fanout, idle and storm also drive an MQTT 3.1.1 broker at QoS 1: mqtt://[USER:PASSWORD@]HOST[:PORT]."`
	APIToken   string        `name:"api-token" env:"HOLDFAST_API_TOKEN" placeholder:"TOKEN" help:"Bearer token of the HTTP port (also HOLDFAST_API_TOKEN)."`
	TokenKey   string        `placeholder:"ALG:FILE" help:"Log in with tokens signed by this key (see holdfast token)."`
	PID        int           `name:"pid" help:"Process of the gateway, for its CPU and memory. Default: found by its port, when it is on this machine."`
	Start      bool          `help:"Start a gateway for the run, on an empty temporary directory and free ports, and end it afterwards."`
	StartDir   string        `placeholder:"DIR" help:"Where --start makes that directory. The system's default may be memory, on which syncs cost nothing."`
	Set        []string      `sep:"none" placeholder:"SECTION.KEY=VALUE" help:"Setting of the gateway started by --start; may be repeated."`
	Processes  int           `default:"0" help:"Generator processes that share users, publishers and rate. 0: one, and more when the connections exceed the files one may open (ulimit -n)."`
	ConnectMax time.Duration `default:"60s" help:"Longest time for the logins."`
	SettleMax  time.Duration `default:"30s" help:"Longest wait for what is still under way after the span."`
	JSON       bool          `name:"json" help:"Print one JSON line instead of the table."`
	Out        string        `type:"path" placeholder:"FILE" help:"Append the JSON line to a file, beside the table."`
	HTML       string        `name:"html" type:"path" placeholder:"FILE" help:"Write a page with plots."`
}

// spanFlags are the flags of the scenarios that are measured for a time.
type spanFlags struct {
	WarmUp   time.Duration `default:"3s" help:"Load before the measured span."`
	Duration time.Duration `default:"10s" help:"The measured span."`
}

// benchExits ends the help of every scenario.
const benchExits = `

Exit codes: 0 pass, 1 the run did not come to a verdict, 2 usage, 3 the verdict is no.`

// options are the options all scenarios share.
func (f *benchFlags) options(term *terminal) (bench.Options, error) {
	o := bench.Options{
		Version: version, ConnectMax: f.ConnectMax, SettleMax: f.SettleMax, Processes: f.Processes, Command: commandText(os.Args[1:]),
		Target: bench.Target{Addr: f.Server, API: f.API, APIToken: f.APIToken, PID: f.PID},
	}
	if term.errTTY {
		o.Progress = term.err
	}
	if !strings.Contains(o.Target.API, "://") {
		o.Target.API = "http://" + o.Target.API
	}
	err := f.aim(&o.Target)
	if err != nil {
		return o, &exitCode{exitUsage, err}
	}
	if o.Target.Token, err = benchTokens(f.TokenKey); err != nil {
		return o, err
	}
	if len(f.Set) > 0 && !f.Start {
		return o, &exitCode{exitUsage, errors.New("--set is for the gateway that --start starts")}
	}
	self, err := os.Executable()
	if err != nil {
		return o, fmt.Errorf("finding the program of further processes: %w", err)
	}
	o.Worker = []string{self, "bench", "worker", "--load"}
	if f.TokenKey != "" {
		o.Worker = append(o.Worker, "--token-key", f.TokenKey)
	}
	if f.Start {
		start := &bench.StartOptions{Binary: self, Dir: f.StartDir}
		for _, setting := range f.Set {
			start.Args = append(start.Args, "--set", setting)
		}
		o.Target.Start = start
	}
	return o, nil
}

// apiDefault is the default of --api, which is no wish.
const apiDefault = "http://127.0.0.1:7780"

// aim points the run at what --target names, and says what does not go with it.
func (f *benchFlags) aim(t *bench.Target) error {
	if f.TargetURL == "" {
		return nil
	}
	if f.Start {
		return errors.New("--start starts the target: leave --target away")
	}
	var err error
	if t.Addr, t.MQTT, err = bench.ParseTarget(f.TargetURL); err != nil {
		return fmt.Errorf("--target: %w", err)
	}
	if t.MQTT == nil {
		return nil
	}
	t.API = "" // a broker has none
	switch {
	case f.API != apiDefault && f.API != os.Getenv("HOLDFAST_API"):
		return errors.New("--api is a gateway's: a broker is watched by its process (--pid)")
	case f.TokenKey != "":
		return errors.New("--token-key is a gateway's: a broker takes mqtt://user:password@host:port")
	}
	return nil
}

// broker reports whether the target is an MQTT broker.
func (f *benchFlags) broker() bool { return strings.HasPrefix(f.TargetURL, "mqtt:") }

// errBroker is the usage error for a flag that means nothing to an MQTT broker.
func errBroker(flag, why string) error {
	return &exitCode{exitUsage, fmt.Errorf("%s means nothing to an MQTT broker: %s", flag, why)}
}

// benchTokens makes the function that signs login tokens; nil without a key.
func benchTokens(tokenKey string) (func(user string, publisher bool) (string, error), error) {
	if tokenKey == "" {
		return nil, nil
	}
	keys, err := parseKeys(tokenKey)
	if err == nil && len(keys) != 1 {
		err = errors.New("name one key, as ALG:FILE")
	}
	if err != nil {
		return nil, &exitCode{exitUsage, fmt.Errorf("--token-key %s: %w", tokenKey, err)}
	}
	return func(user string, publisher bool) (string, error) { return benchToken(keys[0], user, publisher) }, nil
}

// benchToken signs a login token for one of the generator's users.
func benchToken(key Key, user string, publisher bool) (string, error) {
	role := "client"
	if publisher {
		role = "publisher"
	}
	return signToken(key, jwt.MapClaims{"sub": user, "role": role, "exp": time.Now().Add(time.Hour).Unix()})
}

// run executes a scenario and reports. The verdict becomes the exit code.
func (f *benchFlags) run(ctx context.Context, term *terminal, span spanFlags, scenario bench.Scenario, err error) error {
	if err != nil {
		return &exitCode{exitUsage, err}
	}
	if span.Duration <= 0 || span.WarmUp < 0 || f.SettleMax < 0 || f.ConnectMax <= 0 {
		return &exitCode{exitUsage, fmt.Errorf("times must be above zero")}
	}
	o, err := f.options(term)
	if err != nil {
		return err
	}
	if f.PID < 0 {
		return &exitCode{exitUsage, errors.New("--pid is a process, above zero")}
	}
	if err := o.Target.Suits(&scenario); err != nil {
		return &exitCode{exitUsage, err}
	}
	if err := f.writable(); err != nil {
		return fmt.Errorf("bench %s: %w", scenario.Name, err)
	}
	o.WarmUp, o.Duration = span.WarmUp, span.Duration
	report, err := bench.Execute(ctx, o, scenario)
	if errors.Is(err, bench.ErrUsage) {
		return &exitCode{exitUsage, err}
	}
	if err != nil {
		return fmt.Errorf("bench %s: %w", scenario.Name, err)
	}
	if err := f.write(term, report); err != nil {
		return err
	}
	switch {
	case report.Interrupted != "":
		return &exitCode{code: exitError} // the report has said so
	case !report.Verdict.Pass:
		return &exitCode{code: exitVerdict}
	}
	return nil
}

// commandText is the command line of these arguments, to be pasted into a shell, without the secrets in it.
func commandText(args []string) string {
	words := []string{"holdfast"}
	hide := false
	for _, arg := range args {
		name, value, hasValue := strings.Cut(arg, "=")
		u, err := url.Parse(arg[strings.LastIndex(arg[:max(strings.Index(arg, "://"), 0)], "=")+1:])
		switch {
		case hide:
			arg, hide = "...", false
		case name == "--api-token" && hasValue && value != "":
			arg = name + "=..."
		case name == "--api-token":
			hide = true
		case err == nil && u.User != nil:
			arg = strings.Replace(arg, u.User.String()+"@", "...@", 1)
		}
		words = append(words, shellWord(arg))
	}
	return strings.Join(words, " ")
}

// shellWord quotes an argument if a shell would not take it as it is.
func shellWord(arg string) string {
	plain := arg != "" && strings.IndexFunc(arg, func(r rune) bool {
		return !strings.ContainsRune("-_./:=,@%+", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0
	if plain {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}

// writable reports why a file of the report could not be written, before a run that may take long and would then be for nothing.
func (f *benchFlags) writable() error {
	for _, path := range [2]string{f.Out, f.HTML} {
		if path == "" {
			continue
		}
		_, err := os.Stat(path)
		isNew := errors.Is(err, os.ErrNotExist)
		if err := writeFile(path, 0, func(io.Writer) error { return nil }); err != nil {
			return err
		}
		if isNew {
			_ = os.Remove(path) // a run without a report leaves none; an empty file does no harm
		}
	}
	return nil
}

// write puts the report everywhere it was asked for. What cannot be written in one place is still written in the others.
func (f *benchFlags) write(term *terminal, report *bench.Report) error {
	show := report.WriteTable
	if f.JSON {
		show = report.WriteJSON
	}
	errs := []error{show(term.out)}
	if f.Out != "" {
		errs = append(errs, writeFile(f.Out, os.O_APPEND, report.WriteJSON))
	}
	if f.HTML != "" {
		errs = append(errs, writeFile(f.HTML, os.O_TRUNC, report.WriteHTML))
	}
	return errors.Join(errs...)
}

// writeFile creates or opens a file and lets write fill it.
func writeFile(path string, flag int, write func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flag, 0o644)
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if err := write(file); err != nil {
		_ = file.Close() // the first error says why
		return err
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// loadFlags describe publishers who push to users.
type loadFlags struct {
	Users      int    `default:"1000" help:"Users online, each with one device."`
	Publishers int    `default:"2" help:"Publishing connections."`
	Payload    int    `default:"128" help:"Bytes of a payload, at least 24."`
	Window     int    `default:"20" help:"Unacknowledged messages of one user that may be under way."`
	Batch      int    `default:"256" help:"Messages in one PUBLISH frame at most."`
	Ack        string `enum:"batch,each" default:"batch" help:"batch: ACKs bundled as the client library does; each: one ACK frame a message."`
	Pick       string `enum:"turn,random" default:"turn" help:"turn: users in turn; random: at random."`
}

// fanout are the options of a load on users.
func (f *loadFlags) fanout(rate float64) bench.FanoutOptions {
	return bench.FanoutOptions{
		Users: f.Users, Publishers: f.Publishers, Rate: rate, Window: f.Window, PayloadBytes: f.Payload,
		AckEach: f.Ack == "each", Random: f.Pick == "random", Batch: f.Batch,
	}
}

// benchFanout is the scenario fanout.
type benchFanout struct {
	benchFlags `embed:""`
	spanFlags  `embed:""`
	loadFlags  `embed:""`
	Rate       float64 `default:"0" help:"Messages a second, open loop. 0: as fast as the windows allow."`
	Library    bool    `help:"Receivers use the client library. Otherwise they confirm in the same way with a fraction of its cost: a phone has one connection, a generator thousands."`
	NoAck      bool    `help:"Publish fire and forget (ack=false)."`
	Messages   int64   `help:"End the load after this many messages. 0: after its time."`
}

// Help is the long help of the command.
func (benchFanout) Help() string {
	return `With --rate the load is an open loop: each message has a time at which it is meant to be sent, and latencies start there, so a stall
of the gateway is in them. Without it publishers keep the windows full, and latencies start when a message is handed to the publisher.

Examples:
  holdfast bench fanout --start
  holdfast bench fanout --start --rate 20000 --html fanout.html
  holdfast bench fanout --target mqtt://127.0.0.1:1883
  holdfast bench fanout --server 10.0.0.7:7700 --api http://10.0.0.7:7780 --users 5000 --ack each --out results.jsonl` + benchExits
}

// Run runs the scenario.
func (b *benchFanout) Run(ctx context.Context, term *terminal) error {
	if b.broker() && b.Ack == "each" {
		return errBroker("--ack", "it is always sent one PUBACK a message")
	}
	o := b.fanout(b.Rate)
	o.Library, o.NoAck, o.Messages = b.Library, b.NoAck, b.Messages
	scenario, err := bench.Fanout(o)
	return b.run(ctx, term, b.spanFlags, scenario, err)
}

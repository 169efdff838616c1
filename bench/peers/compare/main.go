// Command compare runs holdfast and what it is compared with in turn on the same work, driven by the same generator (holdfast bench), each on
// a fresh process, several rounds interleaved. It prints a table with medians, spread and ratios, and writes it as JSON and Markdown.
// It ends only processes that it has started.
//
// File map: work.go what is run and which figures are taken, peer.go the servers, machine.go where it was run, table.go the results.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the command line's.
type options struct {
	holdfast, mochi, relay, mosquitto string // programs
	data                              string // where holdfast keeps its data
	rounds                            int
	jsonFile, markdownFile, page      string
	works, peers                      string // comma-separated; empty: all
}

func main() {
	var o options
	flag.StringVar(&o.holdfast, "holdfast", "holdfast", "program: holdfast, which is also the generator")
	flag.StringVar(&o.mochi, "mochi", "mochi", "program: bench/peers/mochi")
	flag.StringVar(&o.relay, "relay", "relay", "program: bench/peers/relay")
	flag.StringVar(&o.mosquitto, "mosquitto", "", "program: mosquitto; default: the installed one")
	flag.StringVar(&o.data, "data", ".", "directory on a disk, for holdfast's data, which is removed afterwards")
	flag.IntVar(&o.rounds, "rounds", 1, "how often everything is run")
	flag.StringVar(&o.jsonFile, "json", "", "file to write the results to, as JSON")
	flag.StringVar(&o.markdownFile, "markdown", "", "file to write the table to, as Markdown")
	flag.StringVar(&o.page, "page", "", "page to put the table into, between the markers "+markerBegin+" and "+markerEnd)
	flag.StringVar(&o.works, "work", "", "only this work: "+strings.Join(workNames(), ","))
	flag.StringVar(&o.peers, "peers", "", "only these: "+strings.Join(peerNames(), ","))
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

// run does it all.
func run(ctx context.Context, o *options, out, progress io.Writer) error {
	if o.rounds < 1 {
		return errors.New("rounds must be at least 1")
	}
	if err := onDisk(o.data); err != nil {
		return err
	}
	works, err := choose(works(), o.works, func(w *work) string { return w.name })
	if err != nil {
		return err
	}
	peers, err := choose(peers(o), o.peers, func(p *peer) string { return p.name })
	if err != nil {
		return err
	}
	all := &results{Started: time.Now().UTC().Truncate(time.Second), Rounds: o.rounds, Machine: thisMachine(), Versions: map[string]string{}}
	for i := range peers {
		if peers[i].version != nil {
			if all.Versions[peers[i].name], err = peers[i].version(ctx); err != nil {
				return err
			}
		}
	}
	for round := range o.rounds {
		for i := range works {
			for j := range peers {
				if works[i].without(peers[j].name) {
					continue
				}
				fmt.Fprintf(progress, "round %d of %d: %s, %s\n", round+1, o.rounds, works[i].name, peers[j].name)
				one, err := measure(ctx, o, &works[i], &peers[j])
				if err != nil {
					return fmt.Errorf("%s, %s: %w", works[i].name, peers[j].name, err)
				}
				one.Round = round + 1
				if one.version != "" {
					all.Versions[peers[j].name] = one.version
				}
				all.Runs = append(all.Runs, one)
			}
		}
	}
	return all.write(o, works, peers, out)
}

// choose takes those named in list, in their own order; an empty list: all.
func choose[T any](all []T, list string, name func(*T) string) ([]T, error) {
	if list == "" {
		return all, nil
	}
	wanted := strings.Split(list, ",")
	var chosen []T
	for i := range all {
		if at := slices.Index(wanted, name(&all[i])); at >= 0 {
			chosen = append(chosen, all[i])
			wanted = slices.Delete(wanted, at, at+1)
		}
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("nothing is called %s", strings.Join(wanted, " or "))
	}
	return chosen, nil
}

// runMax bounds one run of the generator.
const runMax = 3 * time.Minute

// benchReport is what we read of the generator's JSON line.
type benchReport struct {
	Version   string             `json:"version"`
	Figures   map[string]float64 `json:"figures"`
	Latencies []struct {
		Name   string  `json:"name"`
		P50Ms  float64 `json:"p50_ms"`
		P99Ms  float64 `json:"p99_ms"`
		P999Ms float64 `json:"p999_ms"`
	} `json:"latencies"`
	Generator struct {
		CPUCores float64 `json:"cpu_cores"`
	} `json:"generator"`
	Verdict struct {
		Pass     bool     `json:"pass"`
		Failures []string `json:"failures"`
	} `json:"verdict"`
}

// measure runs one work on one peer, freshly started.
func measure(ctx context.Context, o *options, w *work, p *peer) (oneRun, error) {
	ctx, cancel := context.WithTimeout(ctx, runMax)
	defer cancel()
	args := append([]string{"bench"}, w.args...)
	if p.start == nil {
		args = append(args, "--start", "--start-dir", o.data)
	} else {
		server, err := p.start(ctx)
		if err != nil {
			return oneRun{}, err
		}
		defer server.stop()
		args = append(args, "--target", p.scheme+"://"+server.addr, "--pid", fmt.Sprint(server.cmd.Process.Pid))
	}
	cmd := exec.CommandContext(ctx, o.holdfast, append(args, "--json")...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends what it has started
	cmd.WaitDelay = 15 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt from the keyboard is ours to pass on
	var failed strings.Builder
	cmd.Stderr = &failed
	line, err := cmd.Output()
	var report benchReport
	if decode := json.Unmarshal(line, &report); decode != nil {
		return oneRun{}, fmt.Errorf("the generator: %w\n%s", errors.Join(err, ctx.Err()), failed.String())
	}
	return oneRun{
		Work: w.name, Peer: p.name, Figures: w.take(&report), GeneratorCores: report.Generator.CPUCores, Failures: report.Verdict.Failures,
		version: p.reported(&report),
	}, nil
}

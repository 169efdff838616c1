package delivery

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

const simStepsEach = 4000

var (
	simSeed  = flag.Uint64("seed", 0, "repeat one run of the simulation")
	simSteps = flag.Int("sim.steps", simStepsEach, "events of one run before its faults stop")
	simTime  = flag.Duration("sim.time", 0, "run new seeds for so long")
)

// simOutcome is how a run went.
type simOutcome struct {
	failure string
	trail   []string
	digest  uint64
	world   *sim
}

// simulate runs one world from its seed to the end.
func simulate(seed uint64, steps int, keep bool) (o simOutcome) {
	w := &sim{seed: seed, rand: rand.New(rand.NewPCG(seed, 0x5eed)), now: simStart(), keep: keep}
	defer func() {
		o.world, o.trail, o.digest = w, w.trail, w.digest
		switch x := recover().(type) {
		case nil:
		case simFailure:
			o.failure = x.text
		default:
			o.failure = fmt.Sprintf("panic: %v\n%s", x, debug.Stack())
		}
	}()
	w.draw(steps)
	w.logf("%s", w.plan.String())
	w.store = newSimStore(w)
	w.ledger = newSimLedger(w)
	w.boot()
	w.newUsers()
	w.after(0, w.publish)
	w.after(w.between(1, 2*w.plan.troubleMs), w.troubles)
	for w.steps < w.plan.steps {
		w.step()
	}
	w.ledger.balance()
	w.recover()
	return o
}

func runSeed(t *testing.T, seed uint64, steps int) {
	t.Helper()
	o := simulate(seed, steps, testing.Verbose() && *simSeed != 0)
	if o.failure == "" {
		if len(o.trail) > 0 {
			t.Log("\n" + strings.Join(o.trail, "\n"))
		}
		return
	}
	if len(o.trail) == 0 {
		o = simulate(seed, steps, true) // the same again, written down
	}
	tail := 150
	if testing.Verbose() && *simSeed != 0 {
		tail = len(o.trail)
	}
	repeat := fmt.Sprintf("go test ./delivery -run Sim -seed=%d", seed)
	if steps != simStepsEach {
		repeat += fmt.Sprintf(" -sim.steps=%d", steps)
	}
	t.Fatalf("seed %d: %s\nthe run: %s\nthe last events:\n%s\nseed %d: %s\nrepeat: %s", seed, o.failure,
		o.world.plan.String(), strings.Join(o.trail[max(0, len(o.trail)-tail):], "\n"), seed, o.failure, repeat)
}

// TestSim runs one seed (-seed), new ones for a time (-sim.time), or a fixed list and some more.
func TestSim(t *testing.T) {
	if *simSeed != 0 {
		runSeed(t, *simSeed, *simSteps)
		return
	}
	for _, seed := range oldSeeds(t) {
		runSeed(t, seed, *simSteps)
	}
	if *simTime > 0 {
		n, first, started := uint64(0), rand.Uint64()>>16, time.Now()
		for time.Since(started) < *simTime {
			runSeed(t, first+n, *simSteps)
			n++
		}
		t.Logf("%d new seeds, from %d on", n, first)
		return
	}
	for seed := range uint64(simSeeds) {
		runSeed(t, seed+1, *simSteps)
	}
}

// oldSeeds are the runs that failed once.
func oldSeeds(t *testing.T) (seeds []uint64) {
	f, err := os.Open("testdata/sim_seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		text, _, _ := strings.Cut(s.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = append(seeds, seed)
	}
	return seeds
}

// A seed is worth nothing if it does not repeat its run.
func TestSimSameSeedSameRun(t *testing.T) {
	for n := range min(3, simSeeds/3) {
		seed := uint64(n)
		a, b := simulate(seed+1, 2000, true), simulate(seed+1, 2000, true)
		if a.digest != b.digest || len(a.trail) != len(b.trail) {
			t.Fatalf("seed %d: two runs differ", seed+1)
		}
	}
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// IdleOptions describe the scenario of connections that only keep alive.
type IdleOptions struct {
	// Sizes are the numbers of connections, rising.
	Sizes []int `json:"sizes"`
	// Hold is how long each size is held and watched.
	Hold time.Duration `json:"hold_ns"`
	// Keepalive is what the connections ask for.
	Keepalive time.Duration `json:"keepalive_ns"`
	// PerProcess is how many connections one generator process holds; 0: what its file limit allows.
	PerProcess int `json:"per_process,omitempty"`
	// PerSource is how many connections share a source address of a loopback target; 0: what the system's ports allow.
	PerSource int `json:"per_source,omitempty"`
	// Worker is the command of a further generator process, which runs Worker on its standard input and output.
	Worker []string `json:"-"`
}

func (o *IdleOptions) validate() error {
	switch {
	case len(o.Sizes) == 0 || o.Sizes[0] < 1 || !slices.IsSorted(o.Sizes) || len(slices.Compact(slices.Clone(o.Sizes))) != len(o.Sizes):
		return errors.New("sizes must be rising numbers above zero")
	case o.Sizes[len(o.Sizes)-1] > usersMax:
		return errUsers
	case o.PerProcess > 0 && (o.Sizes[len(o.Sizes)-1]-1)/o.PerProcess >= processesMax:
		return fmt.Errorf("%d connections would take more than %d processes, for one may open %d (ulimit -n)", o.Sizes[len(o.Sizes)-1], processesMax, o.PerProcess)
	case o.Hold <= 0:
		return errors.New("hold must be above zero")
	case o.Keepalive < time.Second:
		return errors.New("the keepalive must be at least a second")
	case o.PerProcess < 0 || o.PerSource < 0:
		return errors.New("connections for each process and source must not be negative")
	}
	return nil
}

// idleStep is what was seen at one size.
type idleStep struct {
	size       int
	took       int64 // ns, until all were logged in
	added      int
	rssBytes   int64
	cpu        time.Duration // in the hold
	held       int64         // ns
	kernel     kernelMemory
	serverSeen bool
}

// idleLoad is the running scenario.
type idleLoad struct {
	r       *Run
	o       IdleOptions
	joined  *Counter
	holders []holder
	holds   []int // connections each of them was asked for
	steps   []idleStep
	empty   reading // the server without connections
	kernel  kernelMemory
	lost    int
	failed  string // the first login that failed
}

// Idle is the scenario of idle connections: memory and CPU of the server for each, at several sizes.
func Idle(o IdleOptions) (Scenario, error) {
	if o.PerProcess == 0 {
		o.PerProcess = connectionsMax()
	}
	if o.PerSource == 0 {
		o.PerSource = portsPerSource()
	}
	if err := o.validate(); err != nil {
		return Scenario{}, err
	}
	l := &idleLoad{o: o}
	return Scenario{
		Name: "idle", Parameters: o, ByWork: true, MQTT: true,
		Connect: func(_ context.Context, r *Run) error {
			l.r, l.joined = r, r.counter("connected")
			l.empty = r.sampler.read()
			l.kernel = readKernel()
			return nil
		},
		Load: l.load,
		Judge: func(_ *Run, report *Report) {
			l.judge(report)
		},
		Close: func() {
			for _, h := range l.holders {
				h.close()
			}
		},
	}, nil
}

// read is the usage at this moment.
func (s *sampler) read() reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readLocked()
}

// kernelMemory is what the kernel of this machine holds for sockets, both ends of local connections included.
type kernelMemory struct {
	buffers int64 // data in TCP sockets
	objects int64 // the sockets themselves, and whatever else the machine does meanwhile
}

// readKernel reads it; zero where it cannot be read.
func readKernel() (k kernelMemory) {
	if n, err := socketMemory(); err == nil {
		k.buffers = n
	}
	if n, err := slabMemory(); err == nil {
		k.objects = n
	}
	return k
}

// load goes from size to size.
func (l *idleLoad) load(ctx context.Context, r *Run) error {
	have := 0
	for _, size := range l.o.Sizes {
		step := idleStep{size: size, added: size - have}
		began := r.now()
		if err := l.grow(ctx, have, size); err != nil {
			return err
		}
		step.took = r.now() - began
		have = size
		// What the logins left to do is done before the hold is watched.
		if !rest(ctx, min(l.o.Hold/4, time.Second)) {
			return errors.New("the time was over before every size was held")
		}
		before := r.sampler.read()
		if !rest(ctx, l.o.Hold) {
			return errors.New("the time was over before every size was held")
		}
		after := r.sampler.read()
		step.rssBytes, step.cpu, step.held = after.server.rssBytes, after.server.cpu-before.server.cpu, after.at-before.at
		step.kernel, step.serverSeen = readKernel(), before.ok && after.ok
		l.steps = append(l.steps, step)
	}
	return l.count(ctx)
}

// rest waits for d; false: ctx ended.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// grow adds connections up to size, in this process as long as it may have more, then in further ones.
func (l *idleLoad) grow(ctx context.Context, have, size int) error {
	for have < size {
		i := have / l.o.PerProcess
		if i == len(l.holders) {
			h, err := l.newHolder(i)
			if err != nil {
				return err
			}
			l.holders, l.holds = append(l.holders, h), append(l.holds, 0)
		}
		n := min(size-have, l.o.PerProcess-l.holds[i])
		x, err := l.holders[i].grow(ctx, order{
			Addr: l.r.o.Target.Addr, MQTT: l.r.o.Target.MQTT, From: have, Count: n, Keepalive: l.o.Keepalive, PerSource: l.o.PerSource,
		})
		if err != nil {
			return err
		}
		if x.Error != "" && l.failed == "" {
			l.failed = x.Error
		}
		l.holds[i] += n
		have += n
		l.joined.add(n)
	}
	return nil
}

func (l *idleLoad) newHolder(i int) (holder, error) {
	if i == 0 {
		return &localHolder{token: l.r.o.Target.Token}, nil
	}
	return startHolder(l.o.Worker)
}

// count asks every holder what it still holds.
func (l *idleLoad) count(ctx context.Context) error {
	held := 0
	for _, h := range l.holders {
		x, err := h.grow(ctx, order{Addr: l.r.o.Target.Addr})
		if err != nil {
			return err
		}
		held += x.Held
	}
	l.lost = l.o.Sizes[len(l.o.Sizes)-1] - held
	return nil
}

func (l *idleLoad) judge(report *Report) {
	report.figure("processes", "generator processes", float64(len(l.holders)), "")
	from := idleStep{rssBytes: l.empty.server.rssBytes, kernel: l.kernel, serverSeen: l.empty.ok}
	for i := range l.steps {
		s := &l.steps[i]
		key, at := fmt.Sprintf("_%d", s.size), fmt.Sprintf(" at %s", count(float64(s.size)))
		if s.took > 0 {
			report.figure("logins_per_second"+key, "logins up to"+at[3:], float64(s.added)/seconds(s.took), "/s")
		}
		if s.serverSeen {
			report.figure("rss_bytes"+key, "server memory"+at, float64(s.rssBytes), "bytes")
			if from.serverSeen {
				report.figure("rss_bytes_per_connection"+key, "  growth per added connection", float64(s.rssBytes-from.rssBytes)/float64(s.added), "bytes")
			}
			report.figure("cpu_us_per_connection_second"+key, "  CPU per connection and second", s.cpu.Seconds()*1e6/float64(s.size)/seconds(s.held), "us")
		}
		report.figure("kernel_buffer_bytes_per_connection"+key, "  kernel socket buffers, growth per added",
			float64(s.kernel.buffers-from.kernel.buffers)/float64(s.added), "bytes")
		report.figure("kernel_object_bytes_per_connection"+key, "  kernel objects (both ends), growth per added",
			float64(s.kernel.objects-from.kernel.objects)/float64(s.added), "bytes")
		from = *s
	}
	if n := len(l.steps); n > 1 && l.steps[0].serverSeen && l.steps[n-1].serverSeen {
		first, last := l.steps[0], l.steps[n-1]
		report.figure("rss_bytes_per_connection", fmt.Sprintf("growth per connection from %d to %d", first.size, last.size),
			float64(last.rssBytes-first.rssBytes)/float64(last.size-first.size), "bytes")
	}
	if l.failed != "" {
		report.fail("%s", l.failed)
	}
	if l.lost > 0 {
		report.fail("%d of %d connections were not there at the end", l.lost, l.o.Sizes[len(l.o.Sizes)-1])
	}
}

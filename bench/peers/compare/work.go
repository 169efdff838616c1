package main

import "slices"

// work is one thing all of them do, as arguments of holdfast bench.
type work struct {
	name, title string
	args        []string
	figures     []figure
	never       []string // peers that cannot do it
}

// figure is one number taken from a report.
type figure struct {
	key, label, unit string
	lower            bool // less is better
	// What it is in the report: a figure's key, or with latency set, a percentile of that latency.
	from, latency string
}

func (w *work) without(peer string) bool { return slices.Contains(w.never, peer) }

// take picks the figures out of a report; what is not there is left out.
func (w *work) take(report *benchReport) map[string]float64 {
	taken := map[string]float64{}
	for _, f := range w.figures {
		if f.latency == "" {
			if v, ok := report.Figures[f.from]; ok {
				taken[f.key] = v
			}
			continue
		}
		for _, l := range report.Latencies {
			if l.Name == f.latency {
				taken[f.key] = map[string]float64{"p50": l.P50Ms, "p99": l.P99Ms, "p999": l.P999Ms}[f.from]
			}
		}
	}
	return taken
}

// works are in the order of the table.
func works() []work {
	const receive = "publish to receive"
	load := []string{"fanout", "--users", "1000", "--payload", "128", "--warm-up", "2s", "--duration", "5s", "--settle-max", "15s"}
	storm := []string{"storm", "--payload", "128", "--live-users", "0", "--live-rate", "0"}
	latencies := []figure{
		{key: "kept", label: "acknowledged deliveries", unit: "/s", from: "deliveries_per_second"},
		{key: "p50", label: "publish to receive, p50", unit: "ms", lower: true, latency: receive, from: "p50"},
		{key: "p99", label: "publish to receive, p99", unit: "ms", lower: true, latency: receive, from: "p99"},
		{key: "p999", label: "publish to receive, p99.9", unit: "ms", lower: true, latency: receive, from: "p999"},
	}
	return []work{
		{
			name: "throughput", title: "1,000 users, 128 bytes, window 20, closed loop", args: with(load, "--window", "20"),
			figures: []figure{
				{key: "deliveries", label: "acknowledged deliveries", unit: "/s", from: "deliveries_per_second"},
				{key: "cpu", label: "server CPU per million", unit: "s", lower: true, from: "server_cpu_seconds_per_million"},
			},
		},
		{
			name: "latency", title: "open loop, 20,000 messages/s", args: with(load, "--rate", "20000"), figures: latencies,
		},
		{
			name: "singles", title: "the same, one message a PUBLISH", args: with(load, "--rate", "20000", "--batch", "1"), figures: latencies,
		},
		{
			name: "idle", title: "idle connections, 2,000 to 18,000, keepalive 60 s",
			args: []string{"idle", "--sizes", "2000,18000", "--hold", "5s", "--keepalive", "60s"},
			figures: []figure{
				{key: "rss", label: "server memory per added connection", unit: "bytes", lower: true, from: "rss_bytes_per_connection"},
				{key: "idle_cpu", label: "server CPU per connection and second", unit: "us", lower: true, from: "cpu_us_per_connection_second_18000"},
			},
		},
		{
			name: "logins", title: "15,000 clients log in at once", args: with(storm, "--users", "15000"),
			figures: []figure{
				{key: "logins", label: "logins", unit: "/s", from: "logins_per_second"},
				{key: "login_cpu", label: "server CPU per login", unit: "us", lower: true, from: "server_cpu_us_per_login"},
				{key: "refused", label: "refused at first", unit: "", lower: true, from: "logins_refused"},
			},
		},
		{
			name: "backlog", title: "500 users come back to 200 stored messages each", args: with(storm, "--users", "500", "--backlog", "200"),
			figures: []figure{{key: "backlog", label: "stored messages delivered and acknowledged", unit: "/s", from: "backlog_per_second"}},
			never:   []string{"relay"},
		},
	}
}

func with(args []string, more ...string) []string { return append(slices.Clone(args), more...) }

func workNames() []string {
	var names []string
	for _, w := range works() {
		names = append(names, w.name)
	}
	return names
}

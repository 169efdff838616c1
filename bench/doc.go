// Package bench is the load generator behind "holdfast bench": it sees the gateway as clients and publishers do, over the TCP and
// HTTP ports, and beside that reads what the server process uses.
//
// A Scenario is a struct of functions, one a phase:
//
//	connect -> warm-up -> measured span -> settle -> verdict
//
// Execute walks it through them, each bounded in time. Load runs through warm-up and span without noticing the border; what
// belongs to the span is decided by the intended time of each message. Latencies are open loop: they start when a message was
// meant to be sent, so a stall of the server (or of this process) is in them. One monotonic clock of one process stamps both ends.
//
// Several processes may share a load: each has users and publishers of its own, the first one leads them through the phases, puts
// their numbers together, watches the server and judges. verify puts faults around any load that delivers.
//
// File map: scenario.go the phases, split.go the parts of a load, processes.go who leads and worker.go who follows, result.go what
// adds up, pace.go when to send, record.go latencies and counters, ledger.go what was sent and arrived and
// the verdict on it, fleet.go receivers, publishers.go publishers, sample.go and proc.go the server's CPU and memory, server.go a
// server of our own, report.go, html.go and plot.go the results; then one file a scenario.
package bench

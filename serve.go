package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"holdfast/admin"
	"holdfast/conn"
	"holdfast/delivery"
	"holdfast/store"
)

// node is a running gateway: its parts in the order they start. They stop in reverse.
type node struct {
	log      *slog.Logger
	config   *Config
	metrics  *metrics.Set
	store    *store.Local
	delivery *delivery.Dispatcher
	conns    *conn.Server
	http     *admin.Server // nil: http.listen is empty
	trimmer  *trimmer
}

// runServe runs a node until ctx ends or a part fails for good, then drains and stops it. A second signal ends the process at once.
func runServe(ctx context.Context, c *Config, log *slog.Logger) error {
	n := &node{log: log, config: c, metrics: metrics.NewSet()}
	begun := time.Now()
	if err := n.start(); err != nil {
		n.stop(time.Now().Add(stopTimeout))
		return err
	}
	log.Info("ready", "tcp", n.conns.Addr().String(), "http", n.httpAddr(), "data", c.Store.Dir, "auth", c.Auth.Mode,
		"took", time.Since(begun).Round(time.Millisecond))
	failure := n.wait(ctx)
	begun = time.Now()
	deadline := begun.Add(stopTimeout)
	if failure == nil {
		deadline = begun.Add(c.Drain.Timeout)
		n.drain(deadline.Add(-stopShare(c.Drain.Timeout)))
	}
	begun = time.Now()
	n.stop(deadline)
	log.Info("stopped", "took", time.Since(begun).Round(time.Millisecond))
	return failure
}

// start opens the parts in order. After an error the ones that are open are stopped by the caller.
func (n *node) start() error {
	var err error
	if n.store, err = store.Open(n.config.storeConfig(n.log)); err != nil {
		return err
	}
	n.metrics.RegisterMetricsWriter(n.writeStoreMetrics)
	if n.delivery, err = delivery.NewDispatcher(n.config.deliveryConfig(), n.store, n.metrics, n.log); err != nil {
		return err
	}
	n.delivery.Start()
	auth, err := n.config.authenticator()
	if err != nil {
		return err
	}
	if n.conns, err = conn.New(n.config.connConfig(auth, n.metrics, n.log), gateway{n.delivery}); err != nil {
		return err
	}
	if err = n.conns.Start(); err != nil {
		return fmt.Errorf("tcp.listen: %w", err)
	}
	n.trimmer = startTrimmer()
	if n.config.HTTP.Listen == "" {
		return nil
	}
	return n.startHTTP()
}

func (n *node) startHTTP() error {
	server, err := admin.New(n.config.adminConfig(), admin.Parts{
		Pusher: admin.Dispatch(n.delivery), Inspector: inspector{n.delivery, n.store}, DeadLetters: deadLetters{n.store},
		Metrics: n.metrics, Ready: n.ready, Log: n.log,
	})
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return fmt.Errorf("http.listen: %w", err)
	}
	n.http = server
	return nil
}

// wait returns nil when ctx ends, or why the node cannot go on.
func (n *node) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-n.store.Failed():
		return fmt.Errorf("the store failed and nothing more can be accepted: %w", err)
	case err := <-n.conns.Err():
		return err
	case err := <-n.httpFailed():
		return fmt.Errorf("the HTTP port failed: %w", err)
	}
}

// ready is the answer of /readyz.
func (n *node) ready() (bool, string) {
	if n.delivery.Draining() {
		return false, "draining"
	}
	return true, ""
}

// drain asks clients to come back elsewhere and takes the ACKs that are on their way, until deadline at the latest.
func (n *node) drain(deadline time.Time) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	n.log.Info("draining", "window", n.config.Drain.Window, "timeout", n.config.Drain.Timeout)
	n.conns.Drain()
	if err := n.delivery.Drain(ctx, delivery.DrainOptions{Window: n.config.Drain.Window}); err != nil {
		n.log.Warn("drain ended early; what is not acknowledged waits in the store", "reason", err)
	}
}

// stopTimeout bounds the end of the listeners of a node that does not drain.
const stopTimeout = 3 * time.Second

// stopShare is what of drain.timeout is kept for the end of the listeners: clients that do not close are waited for a second.
func stopShare(drainTimeout time.Duration) time.Duration {
	return min(1500*time.Millisecond, drainTimeout/2)
}

// stop ends the parts in reverse order, the listeners before deadline; parts that never started are passed over.
func (n *node) stop(deadline time.Time) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	if n.trimmer != nil {
		n.trimmer.end()
	}
	if n.http != nil {
		n.report("http", n.http.Shutdown(ctx))
	}
	if n.conns != nil {
		n.report("tcp", n.conns.Stop(ctx))
	}
	if n.delivery != nil {
		n.delivery.Close()
	}
	if n.store != nil {
		n.report("store", n.store.Close())
	}
}

func (n *node) report(part string, err error) {
	if err != nil {
		n.log.Warn("stopping", "part", part, "error", err)
	}
}

// httpFailed is the HTTP port's failure; without the port it never comes.
func (n *node) httpFailed() <-chan error {
	if n.http == nil {
		return nil
	}
	return n.http.Failed()
}

func (n *node) httpAddr() string {
	if n.http == nil {
		return ""
	}
	return n.http.Addr().String()
}

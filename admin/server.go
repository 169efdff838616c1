// Package admin is the HTTP side of a node: the push API for back ends, questions about messages and users for operators, dead
// letters, metrics and health. It decides nothing about delivery; it turns JSON into batches and outcomes into JSON.
//
// openapi.yaml is the contract, and the tests hold every reply against it.
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// Server is the HTTP server of one node. Its methods may be called from any goroutine; Start once, and Shutdown after it.
type Server struct {
	// Static after New.
	config   Config
	parts    Parts
	log      *slog.Logger
	token    [sha256.Size]byte // of Config.Token
	http     *http.Server
	meters   meters
	stop     context.CancelFunc
	stopping context.Context // ends when Shutdown begins: waits for clients end with it, waits for durability do not

	// Safe for concurrent use.
	requests requestPool
	bodies   memory

	// Set by Start.
	listener net.Listener
	failed   chan error
}

// New makes a server; it does not listen yet.
func New(c Config, p Parts) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if p.Pusher == nil || p.Inspector == nil {
		return nil, errors.New("admin: Pusher and Inspector are needed")
	}
	if p.Metrics == nil {
		p.Metrics = metrics.NewSet()
	}
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Process == nil {
		p.Process = metrics.WriteProcessMetrics
	}
	s := &Server{config: c, parts: p, log: p.Log, token: sha256.Sum256([]byte(c.Token)), failed: make(chan error, 1)}
	s.bodies.max = c.BodyMemoryMax
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.meters = newMeters(p.Metrics, s)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{
		Handler:           s.handler(),
		Protocols:         &protocols,
		ReadHeaderTimeout: c.ReadHeaderTimeout,
		IdleTimeout:       c.IdleTimeout,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Start listens and serves in the background. What ends the serving before Shutdown comes out of Failed.
func (s *Server) Start() error {
	l, err := net.Listen("tcp", s.config.Addr)
	if err != nil {
		return fmt.Errorf("listening for HTTP on %s: %w", s.config.Addr, err)
	}
	s.listener = limitConns(l, s.config.ConnsMax)
	go func() {
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("serving HTTP: %w", err)
		}
	}()
	return nil
}

// Addr is where the server listens; valid after Start.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Failed yields an error when serving ended although nobody asked for it.
func (s *Server) Failed() <-chan error { return s.failed }

// Shutdown stops taking connections, lets waits for clients and streams end early, and returns when every request has been
// answered; when ctx ends first, what is left is cut and ctx's error returned. The dispatcher has to be running until then.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	err := s.http.Shutdown(ctx)
	if err != nil {
		_ = s.http.Close()
		return fmt.Errorf("stopping HTTP: %w", err)
	}
	return nil
}

// handler puts the mux behind what concerns every request.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	methods := make(map[string][]string)
	for _, r := range s.routes() {
		mux.Handle(r.method+" "+r.path, s.guard(r))
		methods[r.path] = append(methods[r.path], r.method)
	}
	for path, allowed := range methods {
		allow := strings.Join(allowed, ", ")
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", allow)
			writeProblem(w, problem{code: codeMethodNotAllowed, text: "this path takes " + allow}, "")
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, problem{code: codeNotFound, text: "no such path; GET /openapi.yaml describes the API"}, "")
	})
	// A page in the operator's browser can post to 127.0.0.1 as well as curl can. Browsers say where a request comes from; what
	// comes from another origin and changes something is refused. A page whose own name was made to resolve to this address is of
	// the same origin: against that only the token helps.
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, problem{code: codeCrossOrigin, text: "a page of another origin may not do this"}, "")
	}))
	return origin.Handler(mux)
}

// guard counts and times a route, and asks for the token where one is set.
func (s *Server) guard(r route) http.Handler {
	m := s.meters.route(s.parts.Metrics, r)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		started := time.Now()
		rec := &recorder{ResponseWriter: w, patience: s.config.WriteTimeout}
		defer func() {
			m.observe(rec.status, time.Since(started))
			s.meters.refuse(rec.code)
		}()
		if r.guarded && !s.authorized(req) {
			rec.Header().Set("WWW-Authenticate", `Bearer realm="holdfast"`)
			writeProblem(rec, problem{code: codeUnauthorized, text: "send the token: Authorization: Bearer …"}, "")
			return
		}
		r.handle(rec, req)
	})
}

// authorized compares hashes, so that neither the content nor the length of the token shows in the time it takes.
func (s *Server) authorized(req *http.Request) bool {
	if s.config.Token == "" {
		return true
	}
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// recorder remembers the status and the error code of a reply, and gives the client patience to take it, from its first
// byte on. It unwraps for http.ResponseController.
type recorder struct {
	http.ResponseWriter
	patience time.Duration
	status   int // 0: nothing was written yet
	code     string
}

// WriteHeader starts the reply.
func (r *recorder) WriteHeader(status int) {
	r.status = status
	_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(time.Now().Add(r.patience)) // no deadline: a ResponseWriter of a test
	r.ResponseWriter.WriteHeader(status)
}

// Write starts the reply if WriteHeader has not.
func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

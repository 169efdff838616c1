package admin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"holdfast/codec"
)

// stream is one NDJSON push. Two goroutines share it: the handler's reads lines, pushes them in groups and never waits for an
// outcome; the writer's takes the groups in order, waits for each and writes its results. slots bounds what is on its way: when
// there is none left the handler stops reading, and the publisher's TCP stops sending.
type stream struct {
	// Static after construction.
	server  *Server
	control *http.ResponseController
	options waitOptions
	limits  *limits // of one line
	ctx     context.Context
	groups  chan *group
	slots   chan struct{} // one for each group on its way: taken before it is pushed, given back when it is answered
	stopped chan struct{} // closed by the writer's end

	// Owned by the reader.
	body     io.Reader
	current  *pushRequest // bytes read, not pushed yet
	want     int          // bytes to have room for at the next read
	index    int          // lines with something on them, so far
	skipping bool         // inside a line that is too long

	// Set by the writer, read by the reader.
	broken atomic.Bool // the client does not take results any more
}

// group is some lines that were pushed together. A group with a fatal problem ends the stream.
type group struct {
	request *pushRequest
	push    *pending
	first   int // index of its first line
	atMs    int64
	fatal   problem
}

const (
	streamReadBytes = 64 << 10
	groupCopiesMax  = 1 << 20 // a group with this many bytes of copies takes no more lines
)

// pushStream answers an NDJSON push line by line, in order.
func (s *Server) pushStream(w http.ResponseWriter, req *http.Request, o waitOptions) {
	st := &stream{
		server: s, control: http.NewResponseController(w), options: o, limits: s.limits(), ctx: req.Context(), body: req.Body,
		groups: make(chan *group, s.config.GroupsMax), slots: make(chan struct{}, s.config.GroupsMax), stopped: make(chan struct{}), current: s.requests.get(), want: readBytesMin,
	}
	defer func() { s.release(st.current) }()
	_ = st.control.EnableFullDuplex() // HTTP/2 always is
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	if req.Header.Get("Expect") == "" {
		// The head goes out now: a client that waits for it before it sends its first line would wait for ever. One that asked
		// for "100 Continue" must get that first.
		w.WriteHeader(http.StatusOK)
		_ = st.control.Flush()
		_ = st.control.SetWriteDeadline(time.Time{})
	}
	// A stop of the server, and a writer that failed, wake a reader that sits in Read.
	defer context.AfterFunc(s.stopping, st.interrupt)()
	go st.write(w)
	if p := st.read(); p.code != "" {
		st.groups <- &group{fatal: p}
	}
	close(st.groups)
	<-st.stopped
}

func (st *stream) interrupt() { _ = st.control.SetReadDeadline(time.Unix(1, 0)) }

// read takes lines until the body ends. The problem, if any, is the stream's end.
func (st *stream) read() problem {
	for {
		p, line := st.pushLines(false)
		if p.code != "" || st.broken.Load() {
			return p
		}
		if line {
			continue // the group was full: there may be more lines
		}
		err := st.fill()
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return st.rest()
		case errors.Is(err, errMemory):
			return problem{code: codec.ResultOverloaded.String(), text: overloadText}
		case st.server.stopping.Err() != nil:
			return problemOf(codec.ResultDraining)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return problem{code: codeBodyTimeout, text: "no line arrived for too long"}
		default:
			return problem{code: codeBadJSON, text: "the stream was cut: a last line without its end was not taken"}
		}
	}
}

// rest pushes what is left at the end of the body; the last line may lack its newline.
func (st *stream) rest() problem {
	for {
		if p, more := st.pushLines(true); !more || p.code != "" {
			return p
		}
	}
}

// errMemory: the body budget is used up.
var errMemory = errors.New("body memory is used up")

// fill reads what the client sent, at least a byte.
func (st *stream) fill() error {
	r := st.current
	if cap(r.body)-len(r.body) < st.want/2 || r.charged == 0 {
		if !r.grow(&st.server.bodies, st.want) {
			return errMemory
		}
	}
	// The deadline first, then the reasons to stop: whoever sets one of them interrupts afterwards.
	_ = st.control.SetReadDeadline(time.Now().Add(st.server.config.IdleTimeout))
	if st.broken.Load() || st.server.stopping.Err() != nil {
		return os.ErrDeadlineExceeded
	}
	n, err := st.body.Read(r.body[len(r.body):cap(r.body)])
	r.body = r.body[:len(r.body)+n]
	if len(r.body) == cap(r.body) {
		st.want = min(2*st.want, streamReadBytes) // small reads for a publisher of single lines, large ones for one in a hurry
	}
	if n > 0 && err == io.EOF {
		return nil // it comes again
	}
	return err
}

// pushLines decodes the complete lines there are, at most a group of them, and pushes them. What is left moves to the next
// request's memory. more: the group was full.
func (st *stream) pushLines(last bool) (p problem, more bool) {
	s, r := st.server, st.current
	if !last && !st.skipping && bytes.IndexByte(r.body, '\n') < 0 && len(r.body) <= s.config.LineBytesMax {
		return problem{}, false
	}
	g := &group{request: r, push: s.newPending(), first: st.index, atMs: time.Now().UnixMilli()}
	r.clear()
	rest := r.body
	for len(rest) > 0 && len(r.entries) < s.config.GroupItemsMax && r.added < s.config.GroupItemsMax && r.copies < groupCopiesMax {
		line, after, whole := cutLine(rest)
		if !whole && !last && len(rest) <= s.config.LineBytesMax && !st.skipping {
			break
		}
		rest = after
		st.take(g, line, whole)
	}
	more = len(rest) > 0 && (last || bytes.IndexByte(rest, '\n') >= 0)
	return st.hand(g, rest), more
}

// take decodes one line into the group. whole false: its end is not there, because it is the last line or too long.
func (st *stream) take(g *group, line []byte, whole bool) {
	limit := st.server.config.LineBytesMax
	if st.skipping {
		st.skipping = !whole
		return
	}
	if blank(line) {
		return
	}
	st.index++
	if len(line) > limit {
		st.skipping = !whole
		g.request.entries = append(g.request.entries, entry{problem: problem{code: codeBodyTooLarge,
			text: "a line has at most " + strconv.Itoa(limit) + " bytes"}})
		return
	}
	g.request.decodeLine(g.push.batch, line, st.limits)
}

// hand gives a group to the dispatcher and to the writer, and starts the next one with the bytes that are left.
func (st *stream) hand(g *group, rest []byte) problem {
	s := st.server
	if len(g.request.entries) == 0 { // blank lines, or the middle of a line that is too long
		g.push.batch.Release()
		st.current.body = append(st.current.body[:0], rest...) // moves to the front; append copes with the overlap
		return problem{}
	}
	next := s.requests.get()
	if !next.grow(&s.bodies, len(rest)+st.want) {
		s.requests.put(next)
		g.push.batch.Release()
		return problem{code: codec.ResultOverloaded.String(), text: overloadText}
	}
	next.body = append(next.body[:0], rest...)
	st.current = next
	st.slots <- struct{}{}
	if g.request.added > 0 {
		s.parts.Pusher.Push(g.push.batch)
	} else {
		g.push.finish() // nothing but faults
	}
	st.groups <- g
	return problem{}
}

// write answers the groups in order. It ends when the reader has closed the channel; groups that cannot be answered any more are
// still taken and let go, so the reader is never stuck.
func (st *stream) write(w http.ResponseWriter) {
	defer close(st.stopped)
	for g := range st.groups {
		if g.fatal.code != "" {
			st.server.meters.refuse(g.fatal.code)
			st.send(w, append(appendProblem([]byte(`{"error":`), g.fatal), "}\n"...))
			continue
		}
		st.answer(w, g)
		st.server.release(g.request)
		<-st.slots
	}
}

func (st *stream) answer(w http.ResponseWriter, g *group) {
	s, r := st.server, g.request
	if st.broken.Load() {
		g.push.abandon()
		return
	}
	if !s.await(st.ctx, g.push) {
		st.answerUnknown(w, g)
		return
	}
	defer g.push.batch.Release()
	states := s.followAll(st.ctx, r, g.push.batch, st.options)
	var t tally
	r.out = r.out[:0]
	for i := range r.entries {
		var f *followed
		if states != nil {
			f = &states[i]
		}
		r.out = s.appendIndexed(r.out, r, i, g.first+i, g.push.batch, f, g.atMs, &t)
		r.out = append(r.out, '\n')
	}
	s.count(t)
	st.send(w, r.out)
}

// answerUnknown tells that a group's outcome did not come in time. The batch is not ours any more, so only the ids are known.
func (st *stream) answerUnknown(w http.ResponseWriter, g *group) {
	if st.ctx.Err() != nil {
		st.fail()
		return
	}
	r := g.request
	r.out = r.out[:0]
	for i := range r.entries {
		e := &r.entries[i]
		p := e.problem
		if p.code == "" {
			p = problem{code: codeTimeout, text: unknownOutcomeText}
		}
		r.out = strconv.AppendInt(append(r.out, `{"index":`...), int64(g.first+i), 10)
		r.out = append(r.out, `,"status":"`...)
		if e.problem.code == "" {
			r.out = append(r.out, statusUnknown...)
		} else {
			r.out = append(r.out, statusRefused...)
		}
		r.out = appendProblem(append(r.out, `","error":`...), p)
		if e.problem.code == "" {
			r.out = appendString(append(r.out, `,"message_id":`...), e.messageID)
		}
		r.out = append(r.out, '}', '\n')
	}
	st.send(w, r.out)
}

// send writes and flushes; a client that does not take it in time has broken the stream.
func (st *stream) send(w http.ResponseWriter, lines []byte) {
	if st.broken.Load() {
		return
	}
	_ = st.control.SetWriteDeadline(time.Now().Add(st.server.config.WriteTimeout))
	if _, err := w.Write(lines); err != nil {
		st.fail()
		return
	}
	if err := st.control.Flush(); err != nil {
		st.fail()
	}
	_ = st.control.SetWriteDeadline(time.Time{}) // HTTP/2 would end the stream at it although nothing is being written
}

func (st *stream) fail() {
	st.broken.Store(true)
	st.interrupt()
}

// cutLine splits off the first line; whole: its newline is there.
func cutLine(b []byte) (line, rest []byte, whole bool) {
	return bytes.Cut(b, []byte{'\n'})
}

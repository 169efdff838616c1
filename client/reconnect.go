package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"holdfast/codec"
)

// sessionGood is how long a session must have lived for the back-off to start anew after it. A server that accepts and
// closes at once is treated like one that refuses.
const sessionGood = 10 * time.Second

// fullJitter is a random time up to base x 2^try, at most max. Any two clients that lost their server in the same
// instant come back at unrelated times, which a fixed wait with some noise does not give.
func fullJitter(base, limit time.Duration, try int) time.Duration {
	ceiling := limit
	if try < 32 && base<<try > 0 {
		ceiling = min(base<<try, limit)
	}
	if ceiling <= 0 {
		return 0
	}
	return rand.N(ceiling)
}

// targets are the addresses to try. One goroutine uses it.
type targets struct {
	addrs []string
	at    int
	hints []string // what a server named; each is tried once
}

func newTargets(addrs []string) targets { return targets{addrs: addrs, at: rand.IntN(len(addrs))} }

// hint puts a server's list in front, in random order: everybody got the same one.
func (t *targets) hint(servers []string) {
	if len(servers) == 0 {
		return
	}
	t.hints = append([]string(nil), servers...)
	rand.Shuffle(len(t.hints), func(i, j int) { t.hints[i], t.hints[j] = t.hints[j], t.hints[i] })
}

func (t *targets) next() string {
	if len(t.hints) > 0 {
		addr := t.hints[0]
		t.hints = t.hints[1:]
		return addr
	}
	addr := t.addrs[t.at%len(t.addrs)]
	t.at++
	return addr
}

func splitServers(list []byte) []string {
	var servers []string
	for part := range strings.SplitSeq(string(list), ",") {
		if part = strings.TrimSpace(part); part != "" {
			servers = append(servers, part)
		}
	}
	return servers
}

// tokenState is the login token. One goroutine uses it.
type tokenState struct {
	value   string
	have    bool
	refused int // tokens called expired since the last good session
}

// errSameToken ends the client: coming back with nothing changed would fail again, for ever.
var errSameToken = errors.New("the program gave the same token again")

// loginToken returns the token to log in with, a new one when there is none that holds.
func (c *Client) loginToken(ctx context.Context) (string, error) {
	if c.o.Token == nil || c.token.have {
		return c.token.value, nil
	}
	value, err := c.o.Token(ctx)
	if err != nil {
		return "", fmt.Errorf("get a login token: %w", err)
	}
	if c.token.refused > 0 && value == c.token.value {
		return "", fmt.Errorf("%w: %w", errSameToken, &CloseError{Code: codec.CodeTokenExpired})
	}
	c.token.value, c.token.have = value, true
	return value, nil
}

// verdict is what follows from the end of a connection or of a try.
type verdict struct {
	final   bool
	atOnce  bool          // no back-off: something has been changed
	atLeast time.Duration // the server asked for this
}

// judge gives each end its meaning. A lost connection and everything this side found wrong are reasons to come back.
func (c *Client) judge(err error) verdict {
	var ce *CloseError
	switch {
	case errors.Is(err, ErrClosed) || errors.Is(err, errSameToken) || c.ctx.Err() != nil:
		return verdict{final: true}
	case !errors.As(err, &ce) || ce.Local:
		return verdict{final: c.o.NoReconnect}
	case ce.Code == codec.CodeTokenExpired && c.o.Token != nil && !c.o.NoReconnect:
		c.token.refused++
		c.token.have = false
		// A fresh token that is called expired as well, at the login or soon behind it, means a wrong clock somewhere, which
		// may be put right: back off.
		return verdict{atOnce: c.token.refused == 1, atLeast: ce.RetryAfter}
	default:
		return verdict{final: c.o.NoReconnect || !ce.Code.Reconnect(), atLeast: ce.RetryAfter}
	}
}

// run is the client's goroutine: it serves one session after the other.
func (c *Client) run(s *session) {
	defer close(c.done)
	for s != nil {
		err := c.serve(s)
		c.detach(s)
		if time.Since(s.startedAt) >= sessionGood {
			c.tries, c.token.refused = 0, 0
		}
		if errors.Is(err, errMoved) {
			next := s.moved
			if err = c.moveIn(next); err == nil {
				s = next
				c.connected()
				continue
			}
		}
		if c.isClosed() {
			err = ErrClosed
		}
		if s, err = c.comeBack(c.ctx, err, -1); err != nil {
			c.end(err)
		}
	}
}

// moveIn logs in on the connection that was opened before the last session was left.
func (c *Client) moveIn(s *session) error {
	ctx, cancel := context.WithTimeout(c.ctx, c.o.DialTimeout)
	defer cancel()
	token, err := c.loginToken(ctx)
	if err != nil {
		s.nc.Close()
		return err
	}
	return c.login(ctx, s, token)
}

// comeBack tries to get a session until it has one, until trying makes no sense, until ctx ends or until tries (< 0:
// any number) are used up. cause is why there is none now; nil: the first try.
func (c *Client) comeBack(ctx context.Context, cause error, tries int) (*session, error) {
	err := cause
	for {
		wait := time.Duration(0)
		if err != nil {
			v := c.judge(err)
			v.final = v.final || tries == 0
			c.disconnected(err, v.final)
			if v.final {
				return nil, err
			}
			wait = v.atLeast
			if !v.atOnce {
				wait += fullJitter(c.o.BackoffBase, c.o.BackoffMax, c.tries)
			}
			c.tries++
		}
		addr := c.targets.next()
		if err != nil {
			c.emit(func(e *Events) {
				if e.Reconnecting != nil {
					e.Reconnecting(c.tries, wait, addr)
				}
			})
			if !sleep(ctx, wait) {
				return nil, c.givenUp(ctx, err)
			}
		}
		s, failed := c.connect(ctx, addr)
		if failed == nil {
			c.connected()
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, c.givenUp(ctx, failed)
		}
		err = failed
		tries--
	}
}

// givenUp is the error when ctx ended the tries; last is why the last one failed.
func (c *Client) givenUp(ctx context.Context, last error) error {
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	return errors.Join(ctx.Err(), last)
}

// sleep waits for d; false: ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// readClose turns the server's CLOSE into its error and keeps the servers it names for the next try.
func (c *Client) readClose(f codec.Frame) error {
	var x codec.Close
	if err := codec.DecodeClose(f, &x); err != nil {
		return protocolError(err)
	}
	c.targets.hint(splitServers(x.Servers))
	return &CloseError{Code: x.Code, Reason: string(x.Reason), RetryAfter: millis(x.RetryAfterMs)}
}

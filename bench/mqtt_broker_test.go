package bench

import (
	"bufio"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"testing"
)

// fakeBroker is as much of an MQTT broker as the tests need, with faults on demand. Set the faults before the first connection.
type fakeBroker struct {
	listener net.Listener
	busy     sync.WaitGroup

	connack   []byte                     // what a CONNECT is answered with; nil: what is right
	suback    byte                       // what a subscription is granted
	mute      bool                       // publishes have no PUBACK
	drop      func(topic string) bool    // loses messages after their PUBACK
	extra     func(id uint16) []byte     // bytes sent beside a PUBACK
	hangUp    int                        // closes a publisher's connection after so many messages; 0: never
	handshake func(p mqttPacket, at int) // sees the first packets of each connection

	mu       sync.Mutex
	sessions map[string]*fakeSession
	topics   map[string]*fakeSession
	acked    int
	pings    int
	users    []string
	conns    map[net.Conn]bool
}

// fakeSession is a client's, online or not.
type fakeSession struct {
	nc     net.Conn // nil: not connected
	keep   bool
	topics []string
	queue  [][]byte
	next   uint16
}

func newFakeBroker(t *testing.T, change func(*fakeBroker)) *fakeBroker {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &fakeBroker{
		listener: listener, suback: 1, sessions: map[string]*fakeSession{}, topics: map[string]*fakeSession{}, conns: map[net.Conn]bool{},
	}
	if change != nil {
		change(b)
	}
	b.busy.Go(func() {
		for {
			nc, err := listener.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conns[nc] = true
			b.mu.Unlock()
			b.busy.Go(func() { b.serve(nc) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		b.mu.Lock()
		for nc := range b.conns {
			nc.Close()
		}
		b.mu.Unlock()
		b.busy.Wait()
	})
	return b
}

func (b *fakeBroker) target() Target {
	return Target{Addr: b.listener.Addr().String(), MQTT: &MQTTLogin{User: "me", Password: "secret"}}
}

// serve reads one client's packets.
func (b *fakeBroker) serve(nc net.Conn) {
	defer nc.Close()
	in, buf := bufio.NewReader(nc), []byte(nil)
	var s *fakeSession
	published := 0
	for at := 0; ; at++ {
		p, n, err := parseMQTT(buf)
		for err == nil && n == 0 {
			var c byte
			if c, err = in.ReadByte(); err == nil {
				buf = append(buf, c)
				p, n, err = parseMQTT(buf)
			}
		}
		if err != nil {
			b.leave(s, nc)
			return
		}
		if b.handshake != nil && at < 2 {
			b.handshake(p, at)
		}
		b.mu.Lock()
		switch p.kind {
		case mqttConnect:
			s = b.connectLocked(p.rest, nc)
		case mqttSubscribe:
			b.subscribeLocked(s, p.rest)
		case mqttPublish:
			if published++; b.hangUp > 0 && published > b.hangUp {
				nc.Close()
				break
			}
			b.publishLocked(nc, p)
		case mqttPuback:
			b.acked++
		case mqttPingreq:
			b.pings++
			_, _ = nc.Write(appendMQTTHead(nil, mqttPingresp, 0, 0))
		default: // DISCONNECT
			b.mu.Unlock()
			b.leave(s, nc)
			return
		}
		b.mu.Unlock()
		buf = slices.Clone(buf[n:])
	}
}

// connectLocked reads flags, client id and user of a CONNECT behind its first ten bytes.
func (b *fakeBroker) connectLocked(rest []byte, nc net.Conn) *fakeSession {
	flags, fields := rest[7], rest[10:]
	field := func() string {
		n := int(binary.BigEndian.Uint16(fields))
		text := string(fields[2 : 2+n])
		fields = fields[2+n:]
		return text
	}
	id := field()
	if flags&mqttHasUser != 0 {
		b.users = append(b.users, field()+":"+field())
	}
	if b.connack != nil {
		_, _ = nc.Write(b.connack)
		return nil
	}
	s, present := b.sessions[id]
	if present && s.nc != nil {
		s.nc.Close() // taken over
	}
	if flags&mqttCleanSession != 0 || !present {
		s, present = &fakeSession{keep: flags&mqttCleanSession == 0}, false
		b.sessions[id] = s
	}
	s.nc = nc
	answer := appendMQTTHead(nil, mqttConnack, 0, 2)
	if present {
		answer = append(answer, 1, 0)
	} else {
		answer = append(answer, 0, 0)
	}
	for _, frame := range s.queue {
		answer = append(answer, frame...)
	}
	s.queue = nil
	_, _ = nc.Write(answer)
	return s
}

func (b *fakeBroker) subscribeLocked(s *fakeSession, rest []byte) {
	if s == nil {
		return
	}
	topic := string(rest[4 : 4+binary.BigEndian.Uint16(rest[2:])])
	b.topics[topic] = s
	s.topics = append(s.topics, topic)
	_, _ = s.nc.Write(append(appendMQTTHead(nil, mqttSuback, 0, 3), rest[0], rest[1], b.suback))
}

func (b *fakeBroker) publishLocked(nc net.Conn, p mqttPacket) {
	id, topic, payload, err := p.message()
	if err != nil {
		nc.Close()
		return
	}
	if s := b.topics[string(topic)]; s != nil && (b.drop == nil || !b.drop(string(topic))) {
		var number uint16
		if id != 0 {
			s.next++
			number = s.next
		}
		if frame := appendMQTTPublish(nil, number, string(topic), payload); s.nc != nil {
			_, _ = s.nc.Write(frame)
		} else if s.keep {
			s.queue = append(s.queue, frame)
		}
	}
	if id != 0 && !b.mute {
		answer := appendMQTTPuback(nil, id)
		if b.extra != nil {
			answer = append(answer, b.extra(id)...)
		}
		_, _ = nc.Write(answer)
	}
}

func (b *fakeBroker) leave(s *fakeSession, nc net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, nc)
	if s != nil && s.nc == nc {
		s.nc = nil
		if !s.keep {
			for _, topic := range s.topics {
				delete(b.topics, topic)
			}
		}
	}
}

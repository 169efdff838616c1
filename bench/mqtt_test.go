package bench

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/client"
)

func TestMQTTPacketsSurviveEverySplit(t *testing.T) {
	payload := bytes.Repeat([]byte("x"), 200)
	packets := [][]byte{
		encodeMQTTConnect(&mqttLogin{clientID: "c", user: "u", password: "p", clean: true, keepaliveS: 60}),
		appendMQTTSubscribe(nil, 1, "topic", 1), appendMQTTPublish(nil, 7, "topic", payload), appendMQTTPublish(nil, 0, "t", nil),
		appendMQTTPuback(nil, 65535), appendMQTTHead(nil, mqttPingreq, 0, 0),
	}
	for _, whole := range packets {
		for cut := range whole {
			if _, n, err := parseMQTT(whole[:cut]); n != 0 || err != nil {
				t.Errorf("%x cut at %d: %d, %v", whole, cut, n, err)
			}
		}
		p, n, err := parseMQTT(append(slices.Clone(whole), 0xff))
		if err != nil || n != len(whole) || p.kind != mqttKind(whole[0]>>4) {
			t.Errorf("%x: %+v, %d, %v", whole, p, n, err)
		}
	}
	p, _, _ := parseMQTT(packets[2])
	if id, topic, got, err := p.message(); err != nil || id != 7 || string(topic) != "topic" || !bytes.Equal(got, payload) {
		t.Errorf("message: %d %s %x %v", id, topic, got, err)
	}
	p, _, _ = parseMQTT(packets[3])
	if id, topic, got, err := p.message(); err != nil || id != 0 || string(topic) != "t" || len(got) != 0 {
		t.Errorf("message: %d %s %x %v", id, topic, got, err)
	}
}

// TestMQTTConnectIsTheOneOfTheSpecification compares with bytes put together by hand from chapter 3.1 of the standard.
func TestMQTTConnectIsTheOneOfTheSpecification(t *testing.T) {
	got := encodeMQTTConnect(&mqttLogin{clientID: "ab", user: "u", password: "pw", clean: true, keepaliveS: 258})
	want := []byte{0x10, 21, 0, 4, 'M', 'Q', 'T', 'T', 4, 0xc2, 1, 2, 0, 2, 'a', 'b', 0, 1, 'u', 0, 2, 'p', 'w'}
	if !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestMQTTRefusesBrokenPackets(t *testing.T) {
	for _, bad := range [][]byte{{0x30, 0xff, 0xff, 0xff, 0xff, 1}, {0x30, 0xff, 0xff, 0xff, 0x7f}} {
		if _, _, err := parseMQTT(bad); err == nil {
			t.Errorf("%x was taken", bad)
		}
	}
	for _, p := range []mqttPacket{
		{kind: mqttPublish, rest: []byte{0}}, {kind: mqttPublish, rest: []byte{0, 5, 'a'}}, {kind: mqttPublish, flags: 2, rest: []byte{0, 0, 1}},
		{kind: mqttPublish, flags: 4, rest: []byte{0, 0, 0, 1}}, {kind: mqttPublish, flags: 2, rest: []byte{0, 0, 0, 0}},
	} {
		if _, _, _, err := p.message(); err == nil {
			t.Errorf("%+v was taken", p)
		}
	}
}

func FuzzParseMQTT(f *testing.F) {
	f.Add(appendMQTTPublish(nil, 7, "topic", []byte("payload")))
	f.Add(encodeMQTTConnect(&mqttLogin{clientID: "c", user: "u", clean: true}))
	f.Add([]byte{0x30, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, n, err := parseMQTT(b)
		if err != nil || n == 0 {
			return
		}
		if n > len(b) || len(p.rest) > n-2 {
			t.Fatalf("%d of %d bytes, %d of them the rest", n, len(b), len(p.rest))
		}
		_, _, _, _ = p.message()
		_, _ = p.number()
		_, _ = p.connected(true), p.subscribed()
	})
}

// mqttQuick are options of a short run against a broker.
func mqttQuick(t *testing.T, b *fakeBroker) Options {
	t.Helper()
	o := quick(t)
	o.Target = b.target()
	o.SettleMax = 2 * time.Second
	return o
}

func TestFanoutDrivesABroker(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*FanoutOptions)
		frames float64 // messages per PUBACK; 0: none
	}{
		{"as fast as the windows allow", func(*FanoutOptions) {}, 1},
		{"open loop, one message a write", func(o *FanoutOptions) { o.Rate, o.Batch = 500, 1 }, 1},
		{"QoS 0", func(o *FanoutOptions) { o.NoAck, o.Rate = true, 500 }, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newFakeBroker(t, nil)
			o := smallFanout()
			test.change(&o)
			s, err := Fanout(o)
			report := execute(t, mqttQuick(t, b), s, err)
			wantPass(t, report)
			if value(t, report, "deliveries_per_second") < 100 || report.Latencies[0].Count == 0 || !strings.HasPrefix(report.Target, "mqtt://") {
				t.Errorf("report %+v", report)
			}
			if test.frames > 0 && value(t, report, "messages_per_ack_frame") != test.frames {
				t.Errorf("%v messages a PUBACK", value(t, report, "messages_per_ack_frame"))
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if test.frames > 0 && int64(b.acked) != report.Tally.Received {
				t.Errorf("%d PUBACKs for %d messages", b.acked, report.Tally.Received)
			}
			if !slices.Contains(b.users, "me:secret") {
				t.Errorf("logins %v", b.users)
			}
		})
	}
}

func TestFanoutFindsWhatABrokerLoses(t *testing.T) {
	n := 0
	b := newFakeBroker(t, func(b *fakeBroker) {
		b.drop = func(string) bool { n++; return n%50 == 0 } // under the broker's lock
	})
	o := smallFanout()
	o.Rate = 500
	s, err := Fanout(o)
	report := execute(t, mqttQuick(t, b), s, err)
	if report.Verdict.Pass || report.Tally.Lost == 0 {
		t.Errorf("verdict %+v, tally %+v", report.Verdict, report.Tally)
	}
}

func TestStormDrivesABrokerWithSessionsThatWait(t *testing.T) {
	for _, o := range []StormOptions{
		{Users: 50, PayloadBytes: 64},
		{Users: 20, Backlog: 30, PayloadBytes: 64, LiveUsers: 5, LiveRate: 100, Calm: 100 * time.Millisecond},
	} {
		b := newFakeBroker(t, nil)
		s, err := Storm(o)
		options := mqttQuick(t, b)
		options.Duration = 20 * time.Second
		report := execute(t, options, s, err)
		wantPass(t, report)
		if n := int64(o.Users * o.Backlog); report.Tally.Received != n {
			t.Errorf("%d received, want %d", report.Tally.Received, n)
		}
		b.mu.Lock()
		for id, session := range b.sessions {
			if session.keep {
				t.Errorf("the session of %s was left behind", id)
			}
		}
		b.mu.Unlock()
	}
}

func TestIdleDrivesABrokerFromSeveralProcesses(t *testing.T) {
	b := newFakeBroker(t, nil)
	s, err := Idle(IdleOptions{
		Sizes: []int{10, 30}, Hold: 1300 * time.Millisecond, Keepalive: time.Second, PerProcess: 20, Worker: []string{gatewayBinary, "bench", "worker"},
	})
	o := mqttQuick(t, b)
	o.Duration = time.Minute
	report := execute(t, o, s, err)
	wantPass(t, report)
	if value(t, report, "processes") != 2 {
		t.Errorf("%v processes", value(t, report, "processes"))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pings < 30 || len(b.topics) > 30 {
		t.Errorf("%d pings, %d topics", b.pings, len(b.topics))
	}
}

func TestMQTTLoginSaysWhyItFailed(t *testing.T) {
	for _, test := range []struct {
		change func(*fakeBroker)
		resume bool
		want   string
	}{
		{func(b *fakeBroker) { b.connack = []byte{0x20, 2, 0, 5} }, false, "password"},
		{func(b *fakeBroker) { b.connack = []byte{0x20, 2, 0, 3} }, false, "unavailable"},
		{func(b *fakeBroker) { b.connack = []byte{0x20, 2, 0, 99} }, false, "99"},
		{func(b *fakeBroker) { b.connack = []byte{0x20, 1, 0} }, false, "short"},
		{func(b *fakeBroker) { b.connack = []byte{0x30, 2, 0, 0} }, false, "unexpected"},
		{func(b *fakeBroker) { b.connack = []byte{} }, false, "no answer"},
		{func(b *fakeBroker) { b.suback = 0x80 }, false, "0x80"},
		{nil, true, "kept the session"},
	} {
		target := newFakeBroker(t, test.change).target()
		o := target.mqttOptions("me")
		o.topic, o.resume = "topic", test.resume
		if _, err := dialMQTT(ctxFor(t, 300*time.Millisecond), o, 1); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want one about %s", err, test.want)
		}
	}
}

func TestMQTTLoginTriesAgainUntilItsTimeIsOver(t *testing.T) {
	target := newFakeBroker(t, func(b *fakeBroker) { b.connack = []byte{0x20, 2, 0, 3} }).target()
	began := time.Now()
	if _, err := dialMQTT(ctxFor(t, 200*time.Millisecond), target.mqttOptions("me"), -1); err == nil {
		t.Error("a refused login has a connection")
	}
	if took := time.Since(began); took < 50*time.Millisecond || took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// answers collects the results of calls of PublishAsync.
type answers struct {
	mu   sync.Mutex
	good int
	bad  []error
	got  chan struct{}
}

func (a *answers) take(results []client.Result, _ error) {
	a.mu.Lock()
	for i := range results {
		if err := results[i].Err; err != nil {
			a.bad = append(a.bad, err)
		} else {
			a.good++
		}
	}
	a.mu.Unlock()
	a.got <- struct{}{}
}

func mqttMessages(n int) []client.Outgoing {
	msgs := make([]client.Outgoing, n)
	for i := range msgs {
		msgs[i] = client.Outgoing{User: "nobody", Payload: make([]byte, PayloadBytesMin)}
	}
	return msgs
}

func mqttPublisherTo(t *testing.T, b *fakeBroker) *mqttPublisher {
	t.Helper()
	target := b.target()
	p, err := dialMQTTPublisher(ctxFor(t, 5*time.Second), target.mqttOptions("publisher"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestMQTTPublisherHasABoundOnWhatIsUnanswered(t *testing.T) {
	p := mqttPublisherTo(t, newFakeBroker(t, func(b *fakeBroker) { b.mute = true }))
	a := &answers{got: make(chan struct{}, 10)}
	for range mqttInflight / 1024 {
		if err := p.PublishAsync(t.Context(), mqttMessages(1024), a.take); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.PublishAsync(ctxFor(t, 50*time.Millisecond), mqttMessages(1), a.take); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the message beyond the bound: %v", err)
	}
	if err := p.PublishAsync(t.Context(), mqttMessages(mqttInflight+1), a.take); err == nil {
		t.Error("more messages than the bound were taken at once")
	}
	p.Close()
	for range mqttInflight / 1024 {
		<-a.got
	}
	if a.good != 0 || len(a.bad) != mqttInflight || !errors.Is(a.bad[0], client.ErrUnanswered) {
		t.Errorf("%d answered, %d not", a.good, len(a.bad))
	}
}

func TestMQTTPublisherFailsWithItsConnection(t *testing.T) {
	for _, test := range []struct {
		change func(*fakeBroker)
		want   string
	}{
		{func(b *fakeBroker) { b.hangUp = 3 }, "closed"},
		{func(b *fakeBroker) { b.extra = appendTwice }, "not under way"},
		{func(b *fakeBroker) { b.extra = func(uint16) []byte { return appendMQTTPublish(nil, 1, "t", nil) } }, "unexpected"},
	} {
		p := mqttPublisherTo(t, newFakeBroker(t, test.change))
		a := &answers{got: make(chan struct{}, 100)}
		var err error
		for range 50 {
			if err = p.PublishAsync(t.Context(), mqttMessages(1), a.take); err != nil {
				break
			}
			<-a.got
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want one about %s", err, test.want)
		}
		if a.good == 0 {
			t.Error("nothing was answered before")
		}
	}
}

// appendTwice repeats a PUBACK.
func appendTwice(id uint16) []byte { return appendMQTTPuback(nil, id) }

func TestTargets(t *testing.T) {
	for _, test := range []struct{ text, addr, user, password string }{
		{"mqtt://broker", "broker:1883", "", ""}, {"mqtt://u:p@10.0.0.1:1", "10.0.0.1:1", "u", "p"}, {"mqtt://[::1]:5", "[::1]:5", "", ""},
	} {
		addr, mqtt, err := ParseTarget(test.text)
		if err != nil || addr != test.addr || mqtt == nil || mqtt.User != test.user || mqtt.Password != test.password {
			t.Errorf("%s: %s %+v %v", test.text, addr, mqtt, err)
		}
	}
	if addr, mqtt, err := ParseTarget("holdfast://h:1"); err != nil || addr != "h:1" || mqtt != nil {
		t.Errorf("%s %+v %v", addr, mqtt, err)
	}
	for _, bad := range []string{"h:1", "mqtts://h", "mqtt://", "mqtt://h/topic", "holdfast://h", "holdfast://u@h:1", "mqtt://:p@h", "://"} {
		if _, _, err := ParseTarget(bad); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

package delivery

import (
	"bytes"
	"reflect"
	"testing"

	"holdfast/codec"
)

func sampleCommand() Command {
	return Command{
		MessageID: []byte("m1"), User: []byte("alice"), Device: []byte("phone"), Type: []byte("note"), Conversation: []byte("c7"),
		Payload: []byte("hello"), AcceptedMs: 1_700_000_000_000, ExpireAtMs: 1_700_000_060_000, OwnTTL: true, Priority: codec.PriorityUrgent,
	}
}

func TestCommandSurvivesItsEncoding(t *testing.T) {
	for _, c := range []Command{sampleCommand(), {ExpireAtMs: 1, MessageID: []byte{}, User: []byte{}, Device: []byte{}, Type: []byte{}, Conversation: []byte{}, Payload: []byte{}}} {
		var got Command
		if err := DecodeCommand(AppendCommand([]byte("before")[6:], &c), &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(c, got) {
			t.Fatalf("%+v came back as %+v", c, got)
		}
	}
}

func TestCommandSkipsFieldsOfLaterVersions(t *testing.T) {
	c := sampleCommand()
	var got Command
	if err := DecodeCommand(append(AppendCommand(nil, &c), "more"...), &got); err != nil || string(got.Payload) != "hello" {
		t.Fatalf("%v, payload %q", err, got.Payload)
	}
}

func TestCommandRefusesWhatItDoesNotKnow(t *testing.T) {
	c := sampleCommand()
	good := AppendCommand(nil, &c)
	var got Command
	for n := range len(good) {
		if DecodeCommand(good[:n], &got) == nil {
			t.Errorf("%d of %d bytes decode", n, len(good))
		}
	}
	for _, change := range []func(b []byte){
		func(b []byte) { b[0] = 2 },       // version
		func(b []byte) { b[1] |= 3 << 1 }, // priority
		func(b []byte) { copy(b[2:], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff") },
	} {
		b := bytes.Clone(good)
		change(b)
		if err := DecodeCommand(b, &got); err == nil {
			t.Errorf("%x decodes", b)
		}
	}
}

func FuzzDecodeCommand(f *testing.F) {
	c := sampleCommand()
	f.Add(AppendCommand(nil, &c))
	f.Add(AppendCommand(nil, &Command{}))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var c, again Command
		if DecodeCommand(b, &c) != nil {
			return
		}
		// A number may have come in more bytes than it needs, so the bytes need not be the same: the meaning must.
		if err := DecodeCommand(AppendCommand(nil, &c), &again); err != nil || !reflect.DeepEqual(c, again) {
			t.Fatalf("%+v became %+v (%v)", c, again, err)
		}
	})
}

package bench

import (
	"crypto/rand"
	"encoding/binary"
	"strconv"
	"strings"
)

// PayloadBytesMin is the smallest payload: it holds the stamp that tells whose a message is and when it was meant to be sent.
//
//	0        8      12     16         24
//	| run id | user | seq  | intended | filler … |
const PayloadBytesMin = 24

// stamp is what a payload says about its message.
type stamp struct {
	run      uint64
	user     uint32
	seq      uint32 // of this user's messages, from 0
	intended int64  // nanoseconds of the run's clock
}

// put writes the stamp into the first bytes of a payload.
func (s *stamp) put(payload []byte) {
	binary.BigEndian.PutUint64(payload, s.run)
	binary.BigEndian.PutUint32(payload[8:], s.user)
	binary.BigEndian.PutUint32(payload[12:], s.seq)
	binary.BigEndian.PutUint64(payload[16:], uint64(s.intended))
}

// readStamp reads it back; ok is false for a payload that is none of ours.
func readStamp(payload []byte) (s stamp, ok bool) {
	if len(payload) < PayloadBytesMin {
		return s, false
	}
	return stamp{
		run:      binary.BigEndian.Uint64(payload),
		user:     binary.BigEndian.Uint32(payload[8:]),
		seq:      binary.BigEndian.Uint32(payload[12:]),
		intended: int64(binary.BigEndian.Uint64(payload[16:])),
	}, true
}

// runID is random, so that two runs against one server do not take each other's messages for their own.
func runID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

const idBase = 36

// messageID names a message: run, user and number, so that a failure can be traced on the server.
func messageID(run uint64, user, seq uint32) string {
	b := make([]byte, 0, 32)
	b = append(strconv.AppendUint(b, run, idBase), '-')
	b = append(strconv.AppendUint(b, uint64(user), idBase), '-')
	return string(strconv.AppendUint(b, uint64(seq), idBase))
}

// parseMessageID is the way back.
func parseMessageID(id string) (run uint64, user, seq uint32, ok bool) {
	parts := strings.Split(id, "-")
	if len(parts) != 3 {
		return 0, 0, 0, false
	}
	run, err := strconv.ParseUint(parts[0], idBase, 64)
	if err != nil {
		return 0, 0, 0, false
	}
	u, err := strconv.ParseUint(parts[1], idBase, 32)
	if err != nil {
		return 0, 0, 0, false
	}
	n, err := strconv.ParseUint(parts[2], idBase, 32)
	return run, uint32(u), uint32(n), err == nil
}

// userName is the name of user number n of a run's population.
func userName(n int) string { return "bench-" + strconv.Itoa(n) }

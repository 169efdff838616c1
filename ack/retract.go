package ack

// Retract takes back the latest Add of a session whose bytes were never handed on: the entry goes, and its request number is
// given out again, so that the numbers a client sees stay consecutive. It reports false, and has changed nothing, when the entry
// is not the latest one, or has left the table. wants room is noted as it was.
func (t *Table) Retract(h Handle) bool {
	sh, x, e := t.locate(h)
	defer sh.mu.Unlock()
	if e == nil || e.number != x.numberNext-1 {
		return false
	}
	sh.removeFound(x, h.slot, e)
	x.numberNext--
	return true
}

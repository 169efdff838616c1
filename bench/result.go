package bench

import (
	"maps"
	"slices"
)

// Result is what one generator process has to say at the end beside counters and latencies: plain numbers, so that those of
// several processes can be put together before anybody judges. It belongs to one goroutine.
type Result struct {
	// Sums add up over the processes.
	Sums map[string]int64 `json:"sums,omitempty"`
	// Longest are times in nanoseconds; of several processes the longest counts.
	Longest map[string]int64 `json:"longest,omitempty"`
	// Refused is why publishes were refused, and how often.
	Refused map[string]int64 `json:"refused,omitempty"`
	// Tallies are the ledgers, by the label of their fleet.
	Tallies map[string]*Tally `json:"tallies,omitempty"`
	// Failures are reasons not to pass that only the process itself can see.
	Failures []string `json:"failures,omitempty"`
}

func newResult() *Result {
	return &Result{Sums: map[string]int64{}, Longest: map[string]int64{}, Refused: map[string]int64{}, Tallies: map[string]*Tally{}}
}

// merge adds what another process measured.
func (x *Result) merge(other *Result) {
	for key, n := range other.Sums {
		x.Sums[key] += n
	}
	for key, ns := range other.Longest {
		x.Longest[key] = max(x.Longest[key], ns)
	}
	for why, n := range other.Refused {
		x.Refused[why] += n
	}
	for label, t := range other.Tallies {
		x.tally(label).merge(t)
	}
	for _, f := range other.Failures {
		if !slices.Contains(x.Failures, f) {
			x.Failures = append(x.Failures, f)
		}
	}
}

// tally is the ledger of a fleet; an empty one when there is none.
func (x *Result) tally(label string) *Tally {
	t := x.Tallies[label]
	if t == nil {
		t = &Tally{}
		x.Tallies[label] = t
	}
	return t
}

// addRefused takes the reasons over.
func (x *Result) addRefused(r *refusals) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for why, n := range r.why {
		x.Refused[why] += n
	}
}

// merge adds another process's ledger.
func (t *Tally) merge(o *Tally) {
	t.Sent += o.Sent
	t.Accepted += o.Accepted
	t.Refused += o.Refused
	t.Unanswered += o.Unanswered
	t.Received += o.Received
	t.Copies += o.Copies
	t.Foreign += o.Foreign
	t.Lost += o.Lost
	t.Duplicated += o.Duplicated
	t.Disordered += o.Disordered
	t.WrongUser += o.WrongUser
	t.Unknown += o.Unknown
	t.Examples = append(t.Examples, o.Examples[:min(len(o.Examples), max(examplesMax-len(t.Examples), 0))]...)
}

// sortedReasons are the reasons for refusals in the order of their names, so that two reports look alike.
func (x *Result) sortedReasons() []string {
	return slices.Sorted(maps.Keys(x.Refused))
}

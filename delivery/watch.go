package delivery

import (
	"sync"
	"sync/atomic"
)

// watches tells who waits for the end of deliveries. A waiter registers before it looks at the store, and core.end looks here
// after it has told the store: one of the two sees the other, so no end is missed. Unused, it costs one atomic load per batch of
// ends. Its lock is a leaf.
type watches struct {
	active atomic.Int64 // deliveries watched
	mu     sync.Mutex
	byRef  map[Ref][]*watch // guarded by mu
}

// watch is one waiter for any number of deliveries.
type watch struct {
	done chan struct{} // closed when left is 0 and nothing will be added

	// Guarded by watches.mu.
	left   int // deliveries that have not ended, and one while some may still be added
	closed bool
	refs   []Ref
}

func (w *watches) init() { w.byRef = make(map[Ref][]*watch) }

// open starts a watch that deliveries may be added to until sealed.
func (w *watches) open() *watch { return &watch{done: make(chan struct{}), left: 1} }

// add makes x wait for ref.
func (w *watches) add(x *watch, ref Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x.closed {
		return
	}
	x.left++
	x.refs = append(x.refs, ref)
	w.byRef[ref] = append(w.byRef[ref], x)
	w.active.Add(1)
}

// seal says that nothing more is added to x.
func (w *watches) seal(x *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x.countDown()
}

// ended tells the watches of every delivery in ends, whoever ended it.
func (w *watches) ended(ends []Ending) {
	if w.active.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range ends {
		w.endedLocked(ends[i].Ref)
	}
}

// endedOne is ended for a delivery that was found ended.
func (w *watches) endedOne(ref Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endedLocked(ref)
}

func (w *watches) endedLocked(ref Ref) {
	list, watched := w.byRef[ref]
	if !watched {
		return
	}
	delete(w.byRef, ref)
	w.active.Add(-int64(len(list)))
	for _, x := range list {
		x.countDown()
	}
}

// close forgets x, ended or not. Repeats do nothing.
func (w *watches) close(x *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x.closed {
		return
	}
	x.closed = true
	for _, ref := range x.refs {
		list := w.byRef[ref]
		for i := range list {
			if list[i] != x {
				continue
			}
			w.active.Add(-1)
			if len(list) == 1 {
				delete(w.byRef, ref)
			} else {
				w.byRef[ref] = append(list[:i:i], list[i+1:]...)
			}
			break
		}
	}
}

func (x *watch) countDown() {
	x.left--
	if x.left == 0 {
		close(x.done)
	}
}

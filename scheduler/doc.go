// Package scheduler says when: a timing wheel with O(1) arm and disarm, back-off curves, a retry budget and token buckets.
//
// It takes the time as an argument (monotonic milliseconds), starts no goroutine, and reads neither a clock nor global
// randomness, so that a seeded simulation can run it through millions of steps.
package scheduler

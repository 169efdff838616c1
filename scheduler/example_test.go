package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"holdfast/scheduler"
)

// A wheel times the slots of a table of the caller's. The caller brings the clock.
func ExampleWheel() {
	w := scheduler.NewWheel(0)
	w.Arm(7, 10_000) // slot 7 waits for its ACK until 10 s
	w.Arm(8, 10_000)
	w.Disarm(7) // its ACK came
	fmt.Println(w.Advance(9_990, nil, 100))
	fmt.Println(w.Advance(10_000, nil, 100))
	// Output:
	// []
	// [8]
}

// After a pause everything is due at once. It is taken in bounded steps, so that a lock need not be held throughout.
func ExampleWheel_Behind() {
	w := scheduler.NewWheel(0)
	for slot := range uint32(5) {
		w.Arm(slot, int64(1000+slot))
	}
	const nowMs = 60_000
	for w.Behind(nowMs) {
		fmt.Println(w.Advance(nowMs, nil, 2))
	}
	// Output:
	// [0 1]
	// [2 3]
	// [4]
}

func ExampleBackoff() {
	b := scheduler.Standard()
	r := rand.New(rand.NewPCG(1, 2))
	for retry := 1; retry <= 7; retry++ {
		d := b.Delay(retry, r)
		fmt.Println(retry, d > b.Max(retry)-700*time.Millisecond, b.Max(retry))
	}
	// Output:
	// 1 true 1.8s
	// 2 true 2.8s
	// 3 true 4.8s
	// 4 true 8.8s
	// 5 true 16.8s
	// 6 true 30.8s
	// 7 true 30.8s
}

func ExampleBudget() {
	b := scheduler.NewBudget(scheduler.BudgetConfig{Share: 0.1, FloorPerSecond: 2}, 0)
	b.Fresh(30) // 30 first deliveries pay for 3 retries; 2 more a second are always free
	sent := 0
	for range 100 {
		if b.Take(0) {
			sent++
		}
	}
	fmt.Println(sent)
	// Output: 5
}

func ExampleBucket() {
	b := scheduler.NewBucket(50, 10, 0) // 50 a second, bursts of 10
	fmt.Println(b.TakeUpTo(0, 100), b.WaitMs(0, 1))
	fmt.Println(b.TakeUpTo(100, 100))
	// Output:
	// 10 20
	// 5
}

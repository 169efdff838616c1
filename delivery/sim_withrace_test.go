//go:build race

package delivery

// simSeeds is small here: the simulation has one goroutine, and the race detector nothing to say about it.
const simSeeds = 3

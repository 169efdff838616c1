//go:build !race

package delivery

// simSeeds is how many seeds a plain test run takes, besides the old ones.
const simSeeds = 30

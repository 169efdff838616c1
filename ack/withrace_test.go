//go:build race

package ack

// scale divides the length of the long single-threaded tests, for which the race detector has nothing to say.
const scale = 20

package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"holdfast/codec"
)

// version is the version of the product; CHANGELOG.md says what is in it.
const version = "0.1.0"

// versionCommand prints what was built from what.
type versionCommand struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// versionInfo is the JSON output of the command.
type versionInfo struct {
	Version  string `json:"version"`
	Protocol int    `json:"protocol"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Run prints.
func (v *versionCommand) Run(term *terminal) error {
	info := versionInfo{Version: version, Protocol: codec.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, s := range build.Settings {
			if s.Key == "vcs.revision" {
				info.Revision = s.Value
			}
		}
	}
	if v.JSON {
		return writeJSON(term, info)
	}
	fmt.Fprintf(term.out, "holdfast %s (protocol %d, %s, %s)\n", info.Version, info.Protocol, info.Go, info.Platform)
	return nil
}

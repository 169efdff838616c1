package main

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"holdfast/conn"
)

// partConfigs prints what the parts are given for a configuration.
func partConfigs(c *Config) string {
	log := slog.New(slog.DiscardHandler)
	return fmt.Sprintf("%+v\n%+v\n%+v\n%+v", withoutLog(c.storeConfig(log)), c.deliveryConfig(),
		withoutLog(c.connConfig(conn.NoAuth{}, nil, log)), c.adminConfig())
}

// withoutLog drops what prints as an address, which is no setting.
func withoutLog(config any) string {
	var kept []string
	for field := range strings.FieldsSeq(fmt.Sprintf("%+v", config)) {
		if !strings.HasPrefix(field, "Log:") {
			kept = append(kept, field)
		}
	}
	return strings.Join(kept, " ")
}

// TestEverySettingReachesItsPart sets each key to another value and looks whether any part is given another configuration: a setting without
// effect is worse than none.
func TestEverySettingReachesItsPart(t *testing.T) {
	elsewhere := map[string]string{ // used by serve itself
		"auth.mode": "", "auth.keys": "", "auth.insecure_no_auth": "", "drain.window": "", "drain.timeout": "", "log.level": "", "log.format": "",
	}
	before := partConfigs(mustLoad(t, configSources{}))
	for _, key := range newConfig().keys() {
		if _, ok := elsewhere[key]; ok {
			continue
		}
		c := mustLoad(t, configSources{})
		switch target := c.byKey[key].target.(type) {
		case *string:
			*target = "127.0.0.1:1"
		case oneOf:
			*target.value = target.words[1]
		case *int:
			*target += 3
		case *float64:
			*target += 0.25
		case *time.Duration:
			*target += time.Second
		case *Size:
			*target += 4096
		default:
			t.Fatalf("%s has a value of type %T", key, target)
		}
		if partConfigs(c) == before {
			t.Errorf("%s reaches no part: nothing changes with it", key)
		}
	}
}

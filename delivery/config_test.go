package delivery

import (
	"strings"
	"testing"
	"time"
)

// Further 5: zero, negative and tiny values are refused at start, by the name of the setting.
func TestFurther5ImpossibleSettingsAreNamed(t *testing.T) {
	c := DefaultConfig()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(c *Config){
		"Backoff":           func(c *Config) { c.Backoff.Base = 0 },
		"AckTimeout":        func(c *Config) { c.AckTimeout = time.Millisecond },
		"LiveAttemptsMax":   func(c *Config) { c.LiveAttemptsMax = 0 },
		"LifeAttemptsMax":   func(c *Config) { c.LifeAttemptsMax = 2 },
		"AfterLast":         func(c *Config) { c.AfterLast = 7 },
		"RetryBudgetShare":  func(c *Config) { c.RetryBudgetShare = -1 },
		"RetryBudgetFloor":  func(c *Config) { c.RetryBudgetFloor = 0 },
		"WindowMsgs":        func(c *Config) { c.WindowMsgs = 0 },
		"WindowBytes":       func(c *Config) { c.WindowBytes = -5 },
		"UserResendMax":     func(c *Config) { c.UserResendMax = 0 },
		"UserParkedMax":     func(c *Config) { c.UserParkedMax = 0 },
		"PublishWindow":     func(c *Config) { c.PublishWindow = 0 },
		"FrameBytesMax":     func(c *Config) { c.FrameBytesMax = 2 << 20 },
		"PayloadBytesMax":   func(c *Config) { c.PayloadBytesMax = c.FrameBytesMax },
		"Retention":         func(c *Config) { c.Retention = time.Millisecond },
		"StuckClose":        func(c *Config) { c.StuckClose = 0 },
		"NackDelayMax":      func(c *Config) { c.NackDelayMax = 0 },
		"ExtendMax":         func(c *Config) { c.ExtendMax = -time.Second },
		"LoginBurst":        func(c *Config) { c.LoginBurst = 0 },
		"PaceNodePerSecond": func(c *Config) { c.PaceNodePerSecond = -1 },
		"Lanes":             func(c *Config) { c.Lanes = 65 },
		"LaneItemsMax":      func(c *Config) { c.LaneItemsMax = 1 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

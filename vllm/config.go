package vllm

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// Config says where the engine is and how long and how large its answers may be.
type Config struct {
	URL         string        // http://host:port, or unix:///path/to/socket
	APIKey      string        // the engine's own --api-key; "" = none
	DialTimeout time.Duration // for one TCP connect; default 2s
	StallLimit  time.Duration // longest silence of a stream; default 120s
	MaxEvent    int           // bytes of one SSE event; default 16 MiB
	MaxAnswer   int           // bytes of one plain answer; default 64 MiB
}

// DefaultConfig is vLLM on its own default port.
func DefaultConfig() Config {
	return Config{
		URL:         "http://127.0.0.1:8000",
		DialTimeout: 2 * time.Second,
		StallLimit:  StallLimit,
		MaxEvent:    16 << 20,
		MaxAnswer:   64 << 20,
	}
}

// Validate names the first field that is wrong, its value and what to write.
func (c Config) Validate() error {
	if _, _, err := c.target(); err != nil {
		return err
	}
	if strings.ContainsFunc(c.APIKey, unprintable) {
		return fmt.Errorf("vllm: APIKey holds a space or a control character: give the key alone, without a line end")
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"DialTimeout", c.DialTimeout}, {"StallLimit", c.StallLimit}} {
		if d.value <= 0 {
			return fmt.Errorf("vllm: %s is %v: give a positive duration", d.name, d.value)
		}
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"MaxEvent", c.MaxEvent}, {"MaxAnswer", c.MaxAnswer}} {
		if n.value < 4<<10 || n.value > 1<<30 {
			return fmt.Errorf("vllm: %s is %d: give 4096 (4 KiB) to 1073741824 (1 GiB)", n.name, n.value)
		}
	}
	return nil
}

// target is the base of every request's URL and the socket path ("" = TCP).
func (c Config) target() (base, socket string, err error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return "", "", fmt.Errorf("vllm: URL is %q: give http://host:port or unix:///path", c.URL)
	}
	switch {
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		return "http://localhost", u.Path, nil
	case u.Scheme == "unix":
		return "", "", fmt.Errorf("vllm: URL is %q: a socket needs three slashes, as in unix:///run/vllm.sock", c.URL)
	case u.Scheme != "http" || u.Hostname() == "" || u.User != nil:
		return "", "", fmt.Errorf("vllm: URL is %q: give http://host:port or unix:///path", u.Redacted())
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return "", "", fmt.Errorf("vllm: URL is %q: drop everything after the port, paths are added to it", c.URL)
	}
	return "http://" + u.Host, "", nil
}

func unprintable(r rune) bool { return r <= ' ' || r >= 0x7f }

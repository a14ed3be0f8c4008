package world

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestProfileFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpu.yaml")
	for _, c := range []struct{ name, text, want string }{
		{"good", "kv_tokens: 32000\nengines: 2\nstep: 12ms\nper_prefill_token: 40us\n", ""},
		{"unknown key", "kv_token: 1\n", "kv_token"},
		{"no block", "kv_tokens: 3\n", "kv_tokens 3"},
		{"too many engines", "engines: 65\n", "engines 65"},
		{"context above memory", "kv_tokens: 1600\nmax_model_len: 3200\n", "MaxModelLen is 3200"},
		{"negative time", "step: -1ms\n", "Base"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := LoadProfile(file)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want one with %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if e := p.Engine; len(p.Speeds) != 2 || e.Capacity() != 32_000 || e.MaxModelLen != 32_000 || e.Base != 12*time.Millisecond || e.MaxSeqs != 256 {
				t.Errorf("read %+v", p)
			}
		})
	}
}

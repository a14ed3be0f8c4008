package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func flagSet() *pflag.FlagSet {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.String("listen", "127.0.0.1:4780", "address of the API")
	flags.StringArray("engine", nil, "URL of an engine")
	flags.Duration("slo-ttft", 2*time.Second, "a duration such as 2s")
	flags.Bool("insecure-no-auth", false, "serve without keys")
	flags.String("config", "", "file")
	return flags
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "penstock.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestOrder(t *testing.T) {
	file := write(t, "listen: file:1\nslo-ttft: 3s\nengine:\n  - http://a\n  - http://b\n")
	flags := flagSet()
	if err := flags.Parse([]string{"--listen", "flag:1"}); err != nil {
		t.Fatal(err)
	}
	origins, err := Load(flags, file, env(map[string]string{"PENSTOCK_LISTEN": "env:1", "PENSTOCK_SLO_TTFT": "4s"}))
	if err != nil {
		t.Fatal(err)
	}
	want := Origins{"listen": "flag", "slo-ttft": "PENSTOCK_SLO_TTFT", "engine": file + ":3", "insecure-no-auth": "default"}
	// The list's place is where its key stands.
	if diff := cmp.Diff(want, origins); diff != "" {
		t.Error(diff)
	}
	got := Show(flags, origins, false)
	wantShow := "engine: [http://a,http://b]\ninsecure-no-auth: false\nlisten: flag:1\nslo-ttft: 4s\n"
	if diff := cmp.Diff(wantShow, got); diff != "" {
		t.Error(diff)
	}
	if withOrigin := Show(flags, origins, true); !strings.Contains(withOrigin, "# PENSTOCK_SLO_TTFT") {
		t.Errorf("no origin in:\n%s", withOrigin)
	}
}

func TestErrorsNameValuePlaceAndFix(t *testing.T) {
	tests := []struct {
		name, file string
		env        map[string]string
		want       []string
	}{
		{"unknown key", "listen: a:1\nslo_ttft: 2s\n", nil, []string{":2: unknown key \"slo_ttft\"", "    slo_ttft: 2s\n    ^", "did you mean \"slo-ttft\"?"}},
		{"nothing near", "colour: red\n", nil, []string{"unknown key \"colour\"", "known keys: engine, insecure-no-auth, listen, slo-ttft"}},
		{"bad duration", "\nslo-ttft: fast\n", nil, []string{":2: slo-ttft", "fast", "a duration such as 2s"}},
		{"bad variable", "", map[string]string{"PENSTOCK_INSECURE_NO_AUTH": "maybe"}, []string{"PENSTOCK_INSECURE_NO_AUTH=\"maybe\""}},
		{"twice", "listen: a\nlisten: b\n", nil, []string{"listen"}},
		{"a section", "listen:\n  host: a\n", nil, []string{":1: listen", "want a value or a list"}},
		{"not yaml", "listen: [\n", nil, []string{"penstock.yaml"}},
		{"a list", "- a\n", nil, []string{"want lines of \"key: value\""}},
		{"all at once", "colour: red\nsize: 3\n", nil, []string{"colour", "size"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(flagSet(), write(t, tt.file), env(tt.env))
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error lacks %q:\n%v", want, err)
				}
			}
		})
	}
}

func TestNoFileIsNoError(t *testing.T) {
	if _, err := Load(flagSet(), "", env(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(flagSet(), "/does/not/exist.yaml", env(nil)); err == nil || !strings.Contains(err.Error(), "--config") {
		t.Errorf("error of a file that was named and is not there: %v", err)
	}
}

func TestExampleLoads(t *testing.T) {
	lines := strings.Split(Example(flagSet()), "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "# ") {
			lines[i] = strings.TrimPrefix(line, "#")
		}
	}
	text := strings.Join(lines, "\n")
	if _, err := Load(flagSet(), write(t, text), env(nil)); err != nil {
		t.Errorf("the example, uncommented, does not load: %v\n%s", err, text)
	}
}

func FuzzFile(f *testing.F) {
	f.Add("listen: a\n")
	f.Add("engine: [a, b]\n# c\n---\nslo-ttft: 1s")
	f.Add("? a\n: b\n")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = Load(flagSet(), write(t, text), env(nil))
	})
}

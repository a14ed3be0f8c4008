package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"penstock/cmd/penstock/flags"
	"penstock/doctor"
)

// TestCompose holds that deploy/compose names only flags, files and services that
// there are, and sets RocketMQ and Redis up as the doctor says.
func TestCompose(t *testing.T) {
	const dir = "../../deploy/compose"
	text, err := os.ReadFile(dir + "/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Image     string
			Network   string `yaml:"network_mode"`
			Command   []string
			Volumes   []string
			DependsOn any `yaml:"depends_on"`
			Build     struct{ Context, Dockerfile string }
		}
		Volumes map[string]any
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	there := func(service, name string) {
		t.Helper()
		if _, ok := file.Services[name]; !ok {
			t.Errorf("%s wants the service %q, which there is not", service, name)
		}
	}
	var penstocks int
	for name, s := range file.Services {
		if other, shared := strings.CutPrefix(s.Network, "service:"); shared {
			there(name, other)
		}
		switch needs := s.DependsOn.(type) {
		case []any:
			for _, other := range needs {
				there(name, fmt.Sprint(other))
			}
		case map[string]any:
			for other := range needs {
				there(name, other)
			}
		}
		for _, v := range s.Volumes {
			from, _, _ := strings.Cut(v, ":")
			_, named := file.Volumes[from]
			if _, err := os.Stat(filepath.Join(dir, from)); !named && err != nil {
				t.Errorf("%s: volume %s: no such file and no such volume", name, v)
			}
		}
		if s.Image != "penstock" {
			continue
		}
		penstocks++
		if _, err := os.Stat(filepath.Join(dir, s.Build.Context, s.Build.Dockerfile)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cmd, args, err := newRoot().Find(s.Command)
		if err == nil {
			err = cmd.ParseFlags(args)
		}
		if err != nil || !cmd.Runnable() || cmd.Flags().NArg() > 0 {
			t.Errorf("%s: penstock %s: %v, arguments %q", name, strings.Join(s.Command, " "), err, cmd.Flags().Args())
			continue
		}
		if cmd.Flags().Lookup("rocketmq") != nil {
			if _, err := flags.ReadBackends(cmd.Flags()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, flag := range []string{"rocketmq", "redis", "engine"} {
			if f := cmd.Flags().Lookup(flag); f != nil && f.Changed {
				host, _, _ := strings.Cut(strings.TrimPrefix(f.Value.String(), "http://"), ":")
				there(name, host)
			}
		}
	}
	if penstocks != 6 {
		t.Errorf("%d services of ours, want a gateway, two agents, two engines and the doctor", penstocks)
	}
	setup := doctor.NewSetup(doctor.Config{Topic: "penstock", Group: "penstock-agents"})
	for _, line := range setup.MQAdmin {
		if !strings.Contains(strings.Join(file.Services["setup"].Command, "\n"), line) {
			t.Errorf("the service setup lacks the doctor's line\n%s", line)
		}
	}
	redis := strings.Join(file.Services["redis"].Command, " ") + " "
	for _, line := range setup.Redis[1:] { // its memory is for one machine
		if name, value, _ := strings.Cut(line, " "); !strings.Contains(redis, "--"+name+" "+strings.Trim(value, `"`)+" ") {
			t.Errorf("the service redis lacks %q", line)
		}
	}
}

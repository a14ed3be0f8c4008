package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock/cmd/penstock/exit"
	"penstock/gossip"
)

func keysCommand(args ...string) (code int, out, problem string) {
	var stdout, stderr bytes.Buffer
	code = run(append([]string{"keys", "gossip"}, args...), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestKeysGossip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gossip.key")
	code, out, problem := keysCommand(path)
	if code != exit.OK || !strings.Contains(out, "--gossip-key-file "+path) {
		t.Fatalf("new file: code %d, %q %q", code, out, problem)
	}
	keys, err := gossip.ReadKeys(path)
	info, statErr := os.Stat(path)
	if err != nil || statErr != nil || len(keys) != 1 || len(keys[0]) != 32 || info.Mode().Perm() != 0o600 {
		t.Fatalf("new file: %d keys, %v, mode %v; want one of 32 bytes, mode 0600", len(keys), err, info.Mode())
	}
	if code, _, problem := keysCommand(path); code != exit.Usage || !strings.Contains(problem, "--rotate") {
		t.Errorf("a file that is there: code %d, %q; want it refused, naming --rotate", code, problem)
	}
	if again, _ := gossip.ReadKeys(path); !slices.Equal(again[0], keys[0]) {
		t.Error("refused, and the key is another")
	}
	if code, _, _ := keysCommand("--force", path); code != exit.OK {
		t.Errorf("--force: code %d", code)
	}
	if again, _ := gossip.ReadKeys(path); len(again) != 1 || slices.Equal(again[0], keys[0]) {
		t.Errorf("--force: %d keys, want a new one", len(again))
	}
	if code, _, _ := keysCommand("--force", "--rotate", path); code != exit.Usage {
		t.Errorf("--force --rotate: code %d, want usage", code)
	}
	if code, _, problem := keysCommand("--rotate", path+".none"); code == exit.OK || !strings.Contains(problem, "key file") {
		t.Errorf("--rotate of no file: code %d, %q", code, problem)
	}
	if out+problem != "" && strings.Contains(out+problem, keysText(t, path)) {
		t.Error("a key was printed")
	}
}

func keysText(t *testing.T, path string) string {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(page))
}

// TestKeysGossipRotate: after each step every node reads what every node sends that is
// a step before or behind.
func TestKeysGossipRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gossip.key")
	if err := os.WriteFile(path, []byte("# the fleet's key\n\n"+randomGossipKey()+"\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	read := func() [][]byte {
		t.Helper()
		keys, err := gossip.ReadKeys(path)
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	reads := func(keys [][]byte, sent []byte) bool {
		return slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, sent) })
	}
	first := read()
	before := first
	for step, want := range []int{1: 2, 2: 2, 3: 1} {
		if step == 0 {
			continue
		}
		code, out, problem := keysCommand("--rotate", path)
		if code != exit.OK || !strings.HasPrefix(out, "step "+string(rune('0'+step))+" of 3") || strings.Contains(out, "When all have") != (step < 3) {
			t.Fatalf("step %d: code %d, %q %q", step, code, out, problem)
		}
		now := read()
		if len(now) != want || !reads(before, now[0]) || !reads(now, before[0]) {
			t.Errorf("step %d: %d keys, want %d; the node before it reads it: %v, it reads that: %v", step, len(now), want, reads(before, now[0]), reads(now, before[0]))
		}
		before = now
	}
	if bytes.Equal(before[0], first[0]) {
		t.Error("after the rotation the key is the old one")
	}
	info, err := os.Stat(path)
	if page := keysText(t, path); err != nil || info.Mode().Perm() != 0o640 || !strings.HasPrefix(page, "# the fleet's key\n") || strings.Contains(page, "rotation") {
		t.Errorf("afterwards: mode %v, %q; want the mode and the comment kept, and no step", info.Mode(), page)
	}
	if err := os.WriteFile(path, []byte(randomGossipKey()+"\n"+randomGossipKey()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, problem := keysCommand("--rotate", path); code != exit.Usage || !strings.Contains(problem, "does not say which step") {
		t.Errorf("two keys without a step: code %d, %q; want it refused", code, problem)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".gossip-key-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// engineCore finds the process of vLLM's engine among the server's descendants.
func engineCore(t *testing.T) int {
	t.Helper()
	server, err := strconv.Atoi(os.Getenv("E2E_ENGINE_PID"))
	if err != nil {
		t.Fatalf("E2E_ENGINE_PID: %v", err)
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	parent, name := map[int]int{}, map[int]string{}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		end := bytes.LastIndexByte(text, ')')
		name[pid] = string(text[bytes.IndexByte(text, '(')+1 : end])
		parent[pid], _ = strconv.Atoi(strings.Fields(string(text[end+1:]))[1])
	}
	for pid := range name {
		if !strings.HasPrefix(name[pid], "VLLM::Engine") {
			continue
		}
		for up := pid; up > 1; up = parent[up] {
			if up == server {
				return pid
			}
		}
	}
	t.Fatalf("no engine process below %d among %s", server, fmt.Sprint(name))
	return 0
}

func signal(t *testing.T, pid int, name string) {
	t.Helper()
	s := map[string]syscall.Signal{"STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT}[name]
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("SIG%s to %d: %v", name, pid, err)
	}
}

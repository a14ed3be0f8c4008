package memory

import (
	"testing"

	"penstock/registry/registrytest"
)

func TestLongest(t *testing.T) { registrytest.Longest(t, with, 0) }

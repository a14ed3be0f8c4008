//go:build !cgo || !linux

package main

import (
	"fmt"
	"os"

	"penstock/scraper/nvml/wire"
)

// none is the library of a binary that was built without cgo.
type none struct{}

func newLibrary(*calls) library { return none{} }

func (none) init() int {
	fmt.Fprintln(os.Stderr, "penstock-nvml was built without cgo; build it on Linux with CGO_ENABLED=1")
	return 12 // NVML_ERROR_LIBRARY_NOT_FOUND
}

func (none) gpus() ([]wire.GPU, int)    { return nil, gpuNotFound }
func (none) driver() string             { return "" }
func (none) missing() []string          { return nil }
func (none) fast(*wire.GPU)             {}
func (none) slow(*wire.GPU)             {}
func (none) events() ([]wire.XID, bool) { return nil, false }
func (none) shutdown()                  {}

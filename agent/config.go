package agent

import (
	"errors"
	"fmt"
	"time"

	"penstock/scheduler"
	"penstock/scraper"
	"penstock/scraper/nvml"
	"penstock/vllm"
)

// Config of an Agent. Scraper.URL and Engine.URL name the same engine.
type Config struct {
	Node string // who owns what runs here; unique in the fleet, at most 255 bytes
	Pool string // hardware class it declares; "" = takes lanes without one only
	GRPC string // address others reach this agent at, for aborts; "" in standalone

	Grace        time.Duration // how long a drain lets running requests go on; 0 = cut at once
	LeaveAfter   time.Duration // how long the engine may be unusable before its lanes are given up: with a broker, subscribing again costs more than a short gap; 0 = at once
	Room         int           // delivered heads held while capacity is about to come free
	RoomPerLane  int           // of them, of one lane
	RoomHold     time.Duration // longest hold of one; the broker's lease is 15 s
	StoreTimeout time.Duration // one call to the record store; a claim given up costs a second

	Engine    vllm.Config
	Scraper   scraper.Config
	NVML      nvml.Config // of the engine's GPUs, which are on this host
	Scheduler scheduler.Config
}

// DefaultConfig leaves Node and the engine's URL to the caller; see SetEngine.
func DefaultConfig() Config {
	gpus := nvml.DefaultConfig()
	gpus.Path = nvml.Off // the engine may be on another host
	return Config{
		Grace:        30 * time.Second,
		LeaveAfter:   2 * time.Second,
		Room:         8,
		RoomPerLane:  2,
		RoomHold:     500 * time.Millisecond,
		StoreTimeout: time.Second,
		Engine:       vllm.DefaultConfig(),
		Scraper:      scraper.DefaultConfig(),
		NVML:         gpus,
		Scheduler:    scheduler.DefaultConfig(),
	}
}

// SetEngine names the engine for requests and for its metrics page.
func (c *Config) SetEngine(url string) { c.Engine.URL, c.Scraper.URL = url, url }

// Validate names the field, the value and what to set instead.
func (c *Config) Validate() error {
	switch {
	case c.Node == "" || len(c.Node) > 255:
		return fmt.Errorf("agent: Node is %q; set a unique name of 1 to 255 bytes", c.Node)
	case c.Grace < 0:
		return fmt.Errorf("agent: Grace is %v; set 0 or more", c.Grace)
	case c.LeaveAfter < 0:
		return fmt.Errorf("agent: LeaveAfter is %v; set 0 (at once) or more", c.LeaveAfter)
	case c.Room < 0 || c.Room >= scheduler.MostHeads:
		return fmt.Errorf("agent: Room is %d; set 0 (no room) to %d", c.Room, scheduler.MostHeads-1)
	case c.RoomPerLane < 0 || c.RoomPerLane > c.Room:
		return fmt.Errorf("agent: RoomPerLane is %d; set 0 to Room (%d)", c.RoomPerLane, c.Room)
	case c.RoomHold <= 0 || c.RoomHold > 5*time.Second:
		return fmt.Errorf("agent: RoomHold is %v; set a duration up to 5s", c.RoomHold)
	case c.StoreTimeout <= 0 || c.StoreTimeout > 3*time.Second:
		return fmt.Errorf("agent: StoreTimeout is %v; set a duration up to 3s, the time between renewals", c.StoreTimeout)
	case c.Engine.URL != c.Scraper.URL:
		return fmt.Errorf("agent: Engine.URL is %q and Scraper.URL %q; set both to the same engine", c.Engine.URL, c.Scraper.URL)
	}
	return errors.Join(c.Engine.Validate(), c.Scraper.Validate(), c.Scheduler.Validate())
}

// Package scraper reads one engine's metrics page every 50 ms and turns it into
// scheduler.Samples.
package scraper

package identity

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Register adds the metrics of the files with r unless it is nil. use tells them from other files
// of the process, for example "server". A scrape reads the files if they have not been read for a
// second, so a file that cannot be used is reported without a handshake.
func (s *source) Register(r prometheus.Registerer, use string) error {
	if r == nil {
		return nil
	}
	gauge := func(name, help, part string, value func() float64) error {
		labels := prometheus.Labels{"use": use}
		if part != "" {
			labels["part"] = part
		}
		return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value))
	}
	const expiry, expiryHelp = "trivet_tls_expiry_timestamp_seconds",
		"When the certificate in use, or the next of the authorities in use, expires, in seconds since 1970; 0 without one."
	return errors.Join(
		prometheus.WrapRegistererWith(prometheus.Labels{"use": use}, r).Register(s.handshakes.failed),
		gauge(expiry, expiryHelp, "certificate", func() float64 { return seconds(s.current().keyPair.expiry()) }),
		gauge(expiry, expiryHelp, "authorities", func() float64 { return seconds(s.current().authorities.expiry(time.Now())) }),
		gauge("trivet_tls_reload_failing", "1 while the content of the certificate files cannot be used, else 0.", "", func() float64 {
			if s.Check() != nil {
				return 1
			}
			return 0
		}),
	)
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

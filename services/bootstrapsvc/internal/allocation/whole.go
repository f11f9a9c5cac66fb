package allocation

import "time"

// Snapshot is everything that a ledger is told of.
type Snapshot struct {
	Services    []Service
	IPAddresses []IPAddress
	CIDRs       []CIDR
	Bitmaps     []Bitmap
}

// Whole judges everything anew at one moment, so that whatever must ripen is pending.
func Whole(settings Settings, s Snapshot, now time.Time) []Finding {
	l := NewIndex(settings)
	for _, cidr := range s.CIDRs {
		l.PutCIDR(cidr)
	}
	for _, bitmap := range s.Bitmaps {
		l.PutBitmap(bitmap)
	}
	for _, service := range s.Services {
		l.PutService(service)
	}
	for _, address := range s.IPAddresses {
		l.PutIPAddress(address)
	}
	l.Compare(now)
	return l.Findings()
}

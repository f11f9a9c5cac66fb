package certs

import (
	"encoding/json"
	"fmt"
	"time"
)

// Keys of the Secret that has the authorities.
const (
	signingCert = "tls.crt"
	signingKey  = "tls.key"
	nextCert    = "next.crt"
	nextKey     = "next.key"
	rotation    = "rotation.json"
)

// rotationRecord is what a rotation has to know besides the authorities.
type rotationRecord struct {
	NextTrusted time.Time      `json:"nextTrusted,omitzero"`
	Former      []formerRecord `json:"former,omitempty"`
}

type formerRecord struct {
	Certificate string    `json:"certificate"`
	Unused      time.Time `json:"unused,omitzero"`
}

// Encode returns the data of the Secret. The keys of given authorities are not in it.
func (a Authorities) Encode(given *Authority) (map[string][]byte, error) {
	data := map[string][]byte{}
	for _, part := range []struct {
		authority *Authority
		cert, key string
	}{{a.Signing, signingCert, signingKey}, {a.Next, nextCert, nextKey}} {
		if part.authority == nil {
			continue
		}
		data[part.cert] = part.authority.CertPEM()
		key, err := part.authority.KeyPEM()
		if err != nil {
			return nil, err
		}
		if len(key) > 0 && !part.authority.same(given) {
			data[part.key] = key
		}
	}
	record := rotationRecord{NextTrusted: a.NextTrusted.UTC()}
	for _, former := range a.Former {
		record.Former = append(record.Former, formerRecord{Certificate: string(former.Authority.CertPEM()), Unused: former.Unused.UTC()})
	}
	text, err := json.Marshal(record)
	data[rotation] = text
	return data, err
}

// Decode returns the authorities of the data of a Secret.
func Decode(data map[string][]byte) (Authorities, error) {
	var a Authorities
	var err error
	if a.Signing, err = ParseAuthority(data[signingCert], data[signingKey]); err != nil {
		return Authorities{}, fmt.Errorf("%s and %s: %w", signingCert, signingKey, err)
	}
	if len(data[nextCert]) > 0 {
		if a.Next, err = ParseAuthority(data[nextCert], data[nextKey]); err != nil {
			return Authorities{}, fmt.Errorf("%s and %s: %w", nextCert, nextKey, err)
		}
	}
	var record rotationRecord
	if err := json.Unmarshal(data[rotation], &record); err != nil {
		return Authorities{}, fmt.Errorf("%s: %w", rotation, err)
	}
	a.NextTrusted = record.NextTrusted
	for _, former := range record.Former {
		authority, err := ParseAuthority([]byte(former.Certificate), nil)
		if err != nil {
			return Authorities{}, fmt.Errorf("%s: %w", rotation, err)
		}
		a.Former = append(a.Former, Former{Authority: authority, Unused: former.Unused})
	}
	return a, nil
}

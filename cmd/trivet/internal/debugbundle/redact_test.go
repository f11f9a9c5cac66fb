package debugbundle

import "testing"

func TestRedactor_Text(t *testing.T) {
	r := newRedactor("my-own-long-token", "x", "")
	for text, want := range map[string]string{
		"nothing to hide":                         "nothing to hide",
		`{"accessToken": "abcdef"}`:               `{"accessToken": "REDACTED"}`,
		"clientSecret: abcdef":                    "clientSecret: REDACTED",
		"--aws-secret-access-key=abcdef":          "--aws-secret-access-key=REDACTED",
		`"password": "ab,cd;ef gh"`:               `"password": "REDACTED"`,
		"--db-password=ab,cdef;gh --x":            "--db-password=REDACTED --x",
		"https://user:p/w@host/path":              "https://REDACTED@host/path",
		"https://user:p@ss@host/path":             "https://REDACTED@host/path",
		"Authorization: Token abcdefgh":           "Authorization: REDACTED",
		`"automountServiceAccountToken": false`:   `"automountServiceAccountToken": false`,
		`"imagePullSecret": "registry"`:           `"imagePullSecret": "registry"`,
		"sent my-own-long-token to x":             "sent REDACTED to x",
		"https://user:pass@host/path":             "https://REDACTED@host/path",
		"https://host/path?a=b@c":                 "https://host/path?a=b@c",
		`{"token": "abcdef"}`:                     `{"token": "REDACTED"}`,
		`{\"token\":\"abcdef\"}`:                  `{\"token\":\"REDACTED\"}`,
		"--etcd-password=abcdef --x":              "--etcd-password=REDACTED --x",
		`["--client-secret", "abc def"]`:          `["--client-secret", "REDACTED"]`,
		`"token-audiences": "trivet"`:             `"token-audiences": "trivet"`,
		`"secretName": "trivet-tls"`:              `"secretName": "trivet-tls"`,
		`"tls-key-file": "/tls/tls.key"`:          `"tls-key-file": "/tls/tls.key"`,
		"Authorization: Bearer abcdefgh":          "Authorization: REDACTED REDACTED",
		"LS0tLS1CRUdJTiBDRVJU= end":               "REDACTED end",
		"-----BEGIN PRIVATE KEY-----\\nMIG":       "REDACTED",
		"a -----BEGIN CERTIFICATE-----\nMIIB\n b": "a -----BEGIN CERTIFICATE-----\nMIIB\n b",
	} {
		got, count := r.text([]byte(text))
		again, twice := r.text(got)
		if string(got) != want {
			t.Errorf("text(%q) = %q, want %q", text, got, want)
		}
		if (count > 0) != (string(got) != text) || twice != 0 || string(again) != string(got) {
			t.Errorf("text(%q): %d replaced, then %d: %q", text, count, twice, again)
		}
	}
}

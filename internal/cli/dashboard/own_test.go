package dashboard

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// The own paths are protected as the page is: a website must neither read them nor use them, also
// if its name resolves to this machine.
func TestHandler_OwnPathsAnswerTheOwnPageOnly(t *testing.T) {
	const address = "127.0.0.1:7681"
	var reached []string
	own := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reached = append(reached, r.URL.Path) })
	gateway := roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusTeapot, Body: http.NoBody}, nil
	})
	handler, link := Handler(gateway, address, "/demo/", own)
	opened, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	key := strings.TrimPrefix(opened.Fragment, "key=")
	for name, c := range map[string]struct {
		host, origin, site, path string
		noKey                    bool
		code                     int
		reaches                  bool
	}{
		"the page":                    {host: address, origin: "http://" + address, site: "same-origin", path: "/demo/break", code: 200, reaches: true},
		"the page by its other name":  {host: "localhost:7681", origin: "http://localhost:7681", site: "same-origin", path: "/demo/", code: 200, reaches: true},
		"another path":                {host: address, origin: "http://" + address, site: "same-origin", path: "/v1/status", code: http.StatusTeapot},
		"a path that begins alike":    {host: address, path: "/demolition", code: http.StatusTeapot},
		"no key":                      {host: address, origin: "http://" + address, path: "/demo/break", noKey: true, code: 403},
		"a website":                   {host: address, origin: "https://evil.example", site: "cross-site", path: "/demo/break", code: 403},
		"a website, no fetch headers": {host: address, origin: "https://evil.example", path: "/demo/break", code: 403},
		"a sandboxed frame":           {host: address, origin: "null", path: "/demo/break", code: 403},
		"another port of the machine": {host: address, origin: "http://127.0.0.1:8000", site: "same-site", path: "/demo/break", code: 403},
		"an image of another port":    {host: address, site: "same-site", path: "/demo/", code: 403},
		"DNS rebinding":               {host: "evil.example:7681", origin: "http://evil.example:7681", site: "same-origin", path: "/demo/break", code: 421},
		"DNS rebinding, no port":      {host: "evil.example", path: "/demo/", code: 421},
	} {
		reached = nil
		request := httptest.NewRequest(http.MethodPost, c.path, strings.NewReader("{}"))
		request.Host = c.host
		for header, value := range map[string]string{"Origin": c.origin, "Sec-Fetch-Site": c.site} {
			if value != "" {
				request.Header.Set(header, value)
			}
		}
		if !c.noKey {
			request.Header.Set(keyHeader, key)
		}
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		if answer.Code != c.code || (len(reached) > 0) != c.reaches {
			t.Errorf("%s: %d, reached %v; want %d, reached: %t", name, answer.Code, reached, c.code, c.reaches)
		}
		if answer.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: another origin may read the answer", name)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

package registry_test

import (
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

func authFile(host, user, password string) string {
	return `{"auths":{"` + host + `":{"auth":"` + base64.StdEncoding.EncodeToString([]byte(user+":"+password)) + `"}}}`
}

func TestCredentialsAreFound(t *testing.T) {
	t.Parallel()
	for _, kind := range []testenv.Kind{testenv.DistributionHtpasswd, testenv.DistributionToken} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testenv.Registry(t, kind)
			put(t, openName(t, clientFor(t, s), s.Reference("line/state")), "state", nil, "press-07")
			good, bad := authFile(s.Host, s.Username, s.Password), authFile(s.Host, s.Username, "stale")
			dir := t.TempDir()
			home := func(sub, content string) map[string]string {
				h := t.TempDir()
				writeFile(t, content, h, sub)
				return map[string]string{"HOME": h}
			}
			tests := map[string]struct {
				o   registry.Options
				env map[string]string
				is  error
			}{
				"nothing":               {registry.Options{}, nil, fault.ErrUnauthenticated},
				"options":               {registry.Options{Username: s.Username, Password: s.Password}, nil, nil},
				"options for this host": {registry.Options{Username: s.Username, Password: s.Password, Host: s.Host}, nil, nil},
				"options for another":   {registry.Options{Username: s.Username, Password: s.Password, Host: "other.test"}, nil, fault.ErrUnauthenticated},
				"wrong password":        {registry.Options{Username: s.Username, Password: "hunter2"}, nil, fault.ErrUnauthenticated},
				"environment":           {registry.Options{}, map[string]string{"LONGSHORE_USERNAME": s.Username, "LONGSHORE_PASSWORD": s.Password}, nil},
				"flags before it":       {registry.Options{Username: s.Username, Password: s.Password}, map[string]string{"LONGSHORE_USERNAME": "x", "LONGSHORE_PASSWORD": "hunter2"}, nil},
				"Docker's file":         {registry.Options{}, home(".docker/config.json", good), nil},
				"podman's file":         {registry.Options{}, home(".config/containers/auth.json", good), nil},
				"DOCKER_CONFIG":         {registry.Options{}, map[string]string{"DOCKER_CONFIG": filepath.Dir(writeFile(t, good, dir, "d", "config.json"))}, nil},
				"REGISTRY_AUTH_FILE":    {registry.Options{}, map[string]string{"REGISTRY_AUTH_FILE": writeFile(t, good, dir, "r.json")}, nil},
				"AuthFile":              {registry.Options{AuthFile: writeFile(t, good, dir, "a.json")}, nil, nil},
				"AuthFile comes first":  {registry.Options{AuthFile: writeFile(t, good, dir, "a.json")}, home(".docker/config.json", bad), nil},
				"of a namespace":        {registry.Options{AuthFile: writeFile(t, strings.Replace(good, s.Host, s.Host+"/line", 1), dir, "n.json")}, nil, nil},
				"of another namespace":  {registry.Options{AuthFile: writeFile(t, strings.Replace(good, s.Host, s.Host+"/lin", 1), dir, "o.json")}, nil, fault.ErrUnauthenticated},
				"a broken file":         {registry.Options{AuthFile: writeFile(t, "{", dir, "b.json")}, nil, fault.ErrInvalid},
				"a missing file":        {registry.Options{AuthFile: filepath.Join(dir, "missing.json")}, nil, fault.ErrUnauthenticated},
			}
			for name, tt := range tests {
				t.Run(name, func(t *testing.T) {
					tt.o.Getenv = environment(tt.env)
					_, err := openName(t, newClient(t, tt.o), s.Reference("line/state")).Resolve(t.Context(), "press-07")
					if !errors.Is(err, tt.is) {
						t.Errorf("Resolve = %v, want %v", err, tt.is)
					}
					if tt.is == nil {
						return
					}
					for _, secret := range []string{"hunter2", base64.StdEncoding.EncodeToString([]byte(s.Username + ":hunter2")), s.Password} {
						if strings.Contains(err.Error(), secret) || strings.Contains(fault.Hint(err), secret) {
							t.Errorf("Resolve = %v, which holds a secret", err)
						}
					}
					if errors.Is(err, fault.ErrUnauthenticated) && fault.Hint(err) == "" {
						t.Errorf("Resolve = %v without a hint", err)
					}
				})
			}
		})
	}
}

func TestRegistryToken(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.DistributionToken)
	put(t, openName(t, clientFor(t, s), s.Reference("line/state")), "state", nil, "press-07")
	for name, env := range map[string]map[string]string{
		"flag": nil, "environment": {"LONGSHORE_TOKEN": "not.a.token"},
	} {
		o := registry.Options{Getenv: environment(env)}
		if env == nil {
			o.Token = "not.a.token"
		}
		var seen []string
		s.Faults.Clear()
		s.Faults.Add(testenv.Rule{Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			seen = append(seen, r.Header.Get("Authorization"))
			next.ServeHTTP(w, r)
		}})
		_, err := openName(t, newClient(t, o), s.Reference("line/state")).Resolve(t.Context(), "press-07")
		if !errors.Is(err, fault.ErrUnauthenticated) {
			t.Errorf("%s: Resolve with a made-up token = %v, want fault.ErrUnauthenticated", name, err)
		}
		if !strings.Contains(strings.Join(seen, ","), "Bearer not.a.token") {
			t.Errorf("%s: sent %q, want the token", name, seen)
		}
	}
}

// TestExpiredTokenIsRenewedOnce lets a registry forget a token that it gave.
func TestExpiredTokenIsRenewedOnce(t *testing.T) {
	t.Parallel()
	expired := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		r.Header.Del("Authorization")
		next.ServeHTTP(w, r)
	}
	for _, kind := range []testenv.Kind{testenv.DistributionToken, testenv.DistributionHtpasswd} {
		t.Run(string(kind), func(t *testing.T) {
			s := testenv.Registry(t, kind)
			r := openName(t, clientFor(t, s), s.Reference("line/state"))
			put(t, r, "state", nil, "press-07")
			if _, err := r.Resolve(t.Context(), "press-07"); err != nil {
				t.Fatal(err)
			}
			s.Faults.Forget()
			s.Faults.Add(testenv.Rule{Path: "/v2/", Times: 1, Effect: expired})
			if _, err := r.Resolve(t.Context(), "press-07"); err != nil {
				t.Errorf("Resolve with an expired token = %v", err)
			}
			if heads := requests(t, s, http.MethodHead, "", 2); len(heads) != 2 {
				t.Errorf("requests = %+v, want two HEADs", heads)
			}
			s.Faults.Clear()
			s.Faults.Forget()
			s.Faults.Add(testenv.Rule{Path: "/v2/", Effect: expired})
			if _, err := r.Resolve(t.Context(), "press-07"); !errors.Is(err, fault.ErrUnauthenticated) {
				t.Errorf("Resolve with tokens that are never taken = %v, want fault.ErrUnauthenticated", err)
			}
			if heads := requests(t, s, http.MethodHead, "", 2); len(heads) != 2 {
				t.Errorf("requests = %+v, want two HEADs and no more", heads)
			}
			s.Faults.Clear()
			s.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: "/uploads/", Times: 1, Effect: expired})
			data := []byte("pushed while the token ends")
			if err := r.PushBlob(t.Context(), blobOf(data), data); err != nil {
				t.Errorf("PushBlob with a token that ends after its start = %v", err)
			}
		})
	}
}

func TestTokenServerTrouble(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		effect testenv.Effect
		is     error
	}{
		"down":       {testenv.Status(503, 0), fault.ErrTemporary},
		"refuses":    {testenv.Status(401, 0), fault.ErrUnauthenticated},
		"forbids":    {testenv.Status(403, 0), fault.ErrDenied},
		"not JSON":   {answer("text/html", []byte("<html>")), fault.ErrTemporary},
		"no token":   {answer("application/json", []byte("{}")), fault.ErrTemporary},
		"never ends": {answer("application/json", []byte(`{"token":"`+strings.Repeat("x", 1<<20))), fault.ErrTemporary},
		"goes away":  {testenv.Reset(), fault.ErrTemporary},
		"sends on":   {redirectTo("http://169.254.169.254/latest/meta-data"), fault.ErrUnauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			s := testenv.Registry(t, testenv.DistributionToken)
			c := newClient(t, registry.Options{Username: s.Username, Password: s.Password, RetryBudget: time.Millisecond})
			s.Faults.Add(testenv.Rule{Path: "^/token", Effect: tt.effect})
			_, err := openName(t, c, s.Reference("line/state")).Resolve(t.Context(), "press-07")
			if s.Faults.Hits() == 0 || !errors.Is(err, tt.is) || strings.Contains(err.Error(), s.Password) {
				t.Errorf("Resolve = %v after %d questions, want %v", err, s.Faults.Hits(), tt.is)
			}
		})
	}
}

// TestGivenCredentialsStayAtTheTarget: Compose files and deployments name registries of everybody, the flags are for one.
func TestGivenCredentialsStayAtTheTarget(t *testing.T) {
	t.Parallel()
	target, images := testenv.Registry(t, testenv.DistributionHtpasswd), testenv.Registry(t, testenv.DistributionHtpasswd)
	for _, s := range []*testenv.RegistryServer{target, images} {
		r := openName(t, clientFor(t, s), s.Reference("line/web"))
		putImage(t, r, ocispec.MediaTypeImageManifest, `{"os":"linux","architecture":"amd64"}`, "1", "layer")
	}
	var seen []string
	images.Faults.Add(testenv.Rule{Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		seen = append(seen, r.Header.Get("Authorization"))
		next.ServeHTTP(w, r)
	}})
	for name, host := range map[string]string{"by opening it": "", "by name": target.Host} {
		c := newClient(t, registry.Options{Username: target.Username, Password: target.Password, Host: host})
		openName(t, c, target.Reference("line/state"))
		if _, err := c.LockImage(t.Context(), target.Reference("line/web:1")); err != nil {
			t.Errorf("%s: LockImage at the target = %v", name, err)
		}
		if _, err := c.LockImage(t.Context(), images.Reference("line/web:1")); !errors.Is(err, fault.ErrUnauthenticated) {
			t.Errorf("%s: LockImage elsewhere = %v, want fault.ErrUnauthenticated", name, err)
		}
		desc, err := c.Resolve(t.Context(), target.Reference("line/web"), "1")
		if err != nil {
			t.Errorf("%s: Resolve at the target = %v", name, err)
		}
		elsewhere := images.Reference("line/web")
		_, resolve := c.Resolve(t.Context(), elsewhere, "1")
		_, _, manifest := c.Manifest(t.Context(), elsewhere, desc.Digest)
		_, blob := c.Blob(t.Context(), elsewhere, desc, 1<<20)
		for what, err := range map[string]error{"Resolve": resolve, "Manifest": manifest, "Blob": blob} {
			if !errors.Is(err, fault.ErrUnauthenticated) {
				t.Errorf("%s: %s elsewhere = %v, want fault.ErrUnauthenticated", name, what, err)
			}
		}
	}
	if got := strings.Join(seen, ""); got != "" {
		t.Errorf("the other registry was sent %q", got)
	}
}

// TestTokenServerOfAnotherName has GitLab's shape: registry and token server are two names on one private network.
func TestTokenServerOfAnotherName(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.DistributionToken)
	s.Faults.Add(testenv.Rule{Path: "^/v2/", Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(&realmChanger{w}, r)
	}})
	r := openName(t, clientFor(t, s), s.Reference("line/state"))
	desc, _ := put(t, r, "state", nil, "press-07")
	if got, err := r.Resolve(t.Context(), "press-07"); err != nil || got.Digest != desc.Digest {
		t.Errorf("Resolve = %v, %v", got.Digest, err)
	}
}

type realmChanger struct{ http.ResponseWriter }

func (c *realmChanger) WriteHeader(status int) {
	if v := c.Header().Get("Www-Authenticate"); v != "" {
		c.Header().Set("Www-Authenticate", strings.Replace(v, "127.0.0.1", "localhost", 1))
	}
	c.ResponseWriter.WriteHeader(status)
}

func redirectTo(target string) testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		http.Redirect(w, r, target, http.StatusFound)
	}
}

// TestCredentialsStayWithTheirHost sends a blob's download to another server, as registries with object stores do.
func TestCredentialsStayWithTheirHost(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.DistributionHtpasswd)
	store := testenv.Registry(t, testenv.Distribution)
	data := []byte("blob")
	desc := blobOf(data)
	for _, one := range []*testenv.RegistryServer{s, store} {
		if err := openName(t, clientFor(t, one), one.Reference("line/state")).PushBlob(t.Context(), desc, data); err != nil {
			t.Fatal(err)
		}
	}
	var seen string
	store.Faults.Add(testenv.Rule{Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		seen += r.Header.Get("Authorization")
		next.ServeHTTP(w, r)
	}})
	target := store.URL + "/v2/line/state/blobs/" + desc.Digest.String() + "?X-Amz-Signature=verysecret"
	s.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/", Effect: redirectTo(target)})
	r := openName(t, clientFor(t, s), s.Reference("line/state"))
	if got, err := r.Blob(t.Context(), desc, 100); err != nil || string(got) != "blob" {
		t.Errorf("Blob = %q, %v", got, err)
	}
	if seen != "" {
		t.Errorf("the object store was sent %q", seen)
	}
	store.Down()
	if _, err := openName(t, newClient(t, registry.Options{Username: s.Username, Password: s.Password, RetryBudget: -1}), s.Reference("line/state")).Blob(t.Context(), desc, 100); err == nil || strings.Contains(err.Error(), "verysecret") {
		t.Errorf("Blob = %v, want an error without the signed link", err)
	}
}

// TestCredentialsStayWithTheirNameAndPort: net/http alone would take them along to a sub-domain and to another port.
func TestCredentialsStayWithTheirNameAndPort(t *testing.T) {
	t.Parallel()
	data := []byte("blob")
	desc := blobOf(data)
	for _, to := range []string{"cdn.registry.example.com", "registry.example.com:8080", "deep.cdn.registry.example.com:8080"} {
		for name, o := range map[string]registry.Options{
			"a password": {Username: "press", Password: "hunter2"},
			"a token":    {Token: "hunter2"},
		} {
			var told, elsewhere []string
			proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch credential := r.Header.Get("Authorization"); {
				case r.URL.Host != "registry.example.com":
					elsewhere = append(elsewhere, credential)
					_, _ = w.Write(data)
				case credential == "":
					scheme := "Basic"
					if o.Token != "" {
						scheme = "Bearer"
					}
					w.Header().Set("Www-Authenticate", scheme+` realm="http://registry.example.com/token"`)
					w.WriteHeader(http.StatusUnauthorized)
				default:
					told = append(told, credential)
					http.Redirect(w, r, "http://"+to+"/store", http.StatusTemporaryRedirect)
				}
			}))
			t.Cleanup(proxy.Close)
			o.Host, o.PlainHTTP, o.Getenv = "registry.example.com", true, environment(map[string]string{"HTTP_PROXY": proxy.URL})
			c := newClient(t, o)
			if got, err := c.Blob(t.Context(), "registry.example.com/line/state", desc, 100); err != nil || string(got) != "blob" {
				t.Errorf("%s, redirected to %s: Blob = %q, %v", name, to, got, err)
			}
			all, err := c.Endpoints("registry.example.com/line/state")
			if err != nil {
				t.Fatal(err)
			}
			if blob, err := all[0].OpenBlob(t.Context(), desc, 0); err != nil {
				t.Errorf("%s, redirected to %s: OpenBlob = %v", name, to, err)
			} else {
				blob.Close()
			}
			if len(told) != 2 || len(elsewhere) != 2 || strings.Join(elsewhere, "") != "" {
				t.Errorf("%s, redirected to %s: the registry was told %q, the other %q, want both something and nothing twice", name, to, told, elsewhere)
			}
		}
	}
}

// TestWrongPasswordIsNamed: a password that is sent and rejected is wrong. An account without a right has a good one.
func TestWrongPasswordIsNamed(t *testing.T) {
	t.Parallel()
	for _, kind := range []testenv.Kind{testenv.DistributionHtpasswd, testenv.DistributionToken} {
		s := testenv.Registry(t, kind)
		_, err := openName(t, newClient(t, registry.Options{Username: s.Username, Password: "hunter2"}), s.Reference("line/state")).Resolve(t.Context(), "press-07")
		if !errors.Is(err, fault.ErrUnauthenticated) || !strings.Contains(err.Error(), "the user name or the password is wrong") || !strings.HasPrefix(fault.Hint(err), "check both") {
			t.Errorf("%s: Resolve with a wrong password = %v, hint %q", kind, err, fault.Hint(err))
		}
	}
	s := testenv.Registry(t, testenv.DistributionToken)
	s.Faults.Add(testenv.Rule{Path: "^/v2/line/", Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		r.Header.Del("Authorization") // the token does not suffice
		next.ServeHTTP(w, r)
	}})
	_, err := openName(t, newClient(t, registry.Options{Username: s.Username, Password: s.Password}), s.Reference("line/state")).Resolve(t.Context(), "press-07")
	if !errors.Is(err, fault.ErrUnauthenticated) || strings.Contains(err.Error(), "wrong") {
		t.Errorf("Resolve without a right = %v", err)
	}
}

// TestPushShowsWhatIsMissing: some registries take a push only into a project that was created before.
func TestPushShowsWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Referrers)
	s.Faults.Add(testenv.Rule{Method: http.MethodPost, Path: "/uploads/", Effect: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"errors":[{"code":"NAME_UNKNOWN","message":"project plant not found"}]}`))
	}})
	data := []byte("pushed")
	err := openName(t, clientFor(t, s), s.Reference("plant/state")).PushBlob(t.Context(), blobOf(data), data)
	if !errors.Is(err, fault.ErrNotFound) || !strings.Contains(err.Error(), "NAME_UNKNOWN (project plant not found)") {
		t.Errorf("PushBlob = %v, want the registry's message", err)
	}
}

func TestLoginAndLogout(t *testing.T) {
	t.Parallel()
	for _, kind := range []testenv.Kind{testenv.DistributionHtpasswd, testenv.DistributionToken, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			s := testenv.Registry(t, kind)
			home := t.TempDir()
			c := newClient(t, registry.Options{Getenv: environment(map[string]string{"HOME": home}), RetryBudget: time.Second})
			config := filepath.Join(home, ".docker", "config.json")
			user, password := s.Username, s.Password
			if kind == testenv.Referrers { // it asks nobody
				user, password = "any", "any"
			} else {
				if _, err := c.Login(t.Context(), s.Host, s.Username, "hunter2"); !errors.Is(err, fault.ErrUnauthenticated) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("Login with a wrong password = %v, want fault.ErrUnauthenticated", err)
				}
				if _, err := os.Stat(config); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("a wrong password was stored: %v", err)
				}
			}
			stored, err := c.Login(t.Context(), s.Host, user, password)
			if err != nil || stored != config {
				t.Fatalf("Login = %q, %v, want %s", stored, err, config)
			}
			r := openName(t, c, s.Reference("line/state"))
			put(t, r, "state", nil, "press-07")
			from, err := c.Logout(t.Context(), s.Host)
			if err != nil || len(from) != 1 || from[0] != config {
				t.Errorf("Logout = %q, %v, want %s", from, err, config)
			}
			if from, err := c.Logout(t.Context(), s.Host); err != nil || from != nil {
				t.Errorf("Logout again = %q, %v, want nothing", from, err)
			}
		})
	}
	c := newClient(t, registry.Options{RetryBudget: -1})
	for _, host := range []string{"", "a/b", "https://a", "u:p@a", "a b"} {
		if _, err := c.Login(t.Context(), host, "u", "p"); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("Login(%q) = %v, want fault.ErrInvalid", host, err)
		}
		if _, err := c.Logout(t.Context(), host); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("Logout(%q) = %v, want fault.ErrInvalid", host, err)
		}
	}
	if _, err := c.Login(t.Context(), "a.test", "u", ""); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Login with an empty password = %v, want fault.ErrInvalid", err)
	}
	if _, err := c.Login(t.Context(), "no-such-host.invalid", "u", "p"); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Login at an unreachable registry = %v, want fault.ErrTemporary", err)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution, testenv.WithClientCert())
	plain := testenv.Registry(t, testenv.Distribution)
	ours := registry.Options{CAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile}
	put(t, openName(t, newClient(t, ours), s.Reference("line/state")), "state", nil, "press-07")
	put(t, openName(t, newClient(t, registry.Options{}), plain.Reference("line/state")), "state", nil, "press-07")
	localhost := strings.Replace(plain.Host, "127.0.0.1", "localhost", 1)
	tests := map[string]struct {
		o    registry.Options
		host string
		is   error
		hint string
	}{
		"all given":                   {ours, s.Host, nil, ""},
		"skip verification":           {registry.Options{SkipVerify: true, CertFile: s.CertFile, KeyFile: s.KeyFile}, s.Host, nil, ""},
		"no client certificate":       {registry.Options{CAFile: s.CAFile}, s.Host, fault.ErrUnauthenticated, "--cert-file"},
		"another authority":           {registry.Options{CertFile: s.CertFile, KeyFile: s.KeyFile}, s.Host, fault.ErrUnauthenticated, "--ca-file"},
		"plain HTTP to HTTPS":         {registry.Options{PlainHTTP: true}, s.Host, fault.ErrInvalid, "HTTPS"},
		"HTTPS to plain HTTP":         {registry.Options{CAFile: s.CAFile}, plain.Host, fault.ErrUnsupported, "--plain-http"},
		"plain, said for the host":    {registry.Options{CAFile: s.CAFile, PlainHTTPHosts: []string{plain.Host}}, plain.Host, nil, ""},
		"plain, said for another":     {registry.Options{CAFile: s.CAFile, PlainHTTPHosts: []string{"x"}}, plain.Host, fault.ErrUnsupported, "--plain-http"},
		"plain, loopback":             {registry.Options{}, plain.Host, nil, ""},
		"plain, localhost":            {registry.Options{}, localhost, nil, ""},
		"certificate without its key": {registry.Options{CertFile: s.CertFile}, s.Host, fault.ErrInvalid, ""},
		"missing CA file":             {registry.Options{CAFile: "/nowhere/ca.pem"}, s.Host, fault.ErrConfig, ""},
		"key that does not fit":       {registry.Options{CAFile: s.CAFile, CertFile: s.CAFile, KeyFile: s.KeyFile}, s.Host, fault.ErrInvalid, ""},
		"token and user":              {registry.Options{Token: "x", Username: "y"}, s.Host, fault.ErrInvalid, ""},
		"password without a user":     {registry.Options{Password: "y"}, s.Host, fault.ErrInvalid, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := registry.New(tt.o)
			if err == nil {
				defer c.Close()
				_, err = c.Resolve(t.Context(), tt.host+"/line/state", "press-07")
			}
			if !errors.Is(err, tt.is) || !strings.Contains(fault.Hint(err), tt.hint) {
				t.Errorf("Resolve = %v (hint: %s), want %v and a hint with %q", err, fault.Hint(err), tt.is, tt.hint)
			}
		})
	}
}

// FuzzChallenge sends a client with credentials any challenge: it may not panic, nor tell its password to anybody else.
func FuzzChallenge(f *testing.F) {
	s, err := testenv.StartRegistry(f.TempDir(), testenv.Lax)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	for _, seed := range []string{
		`Basic realm="x"`, `Bearer realm="http://` + s.Host + `/token",service="s",scope="a b"`, `Bearer realm="http://169.254.169.254/"`,
		`Bearer realm="ftp://x"`, `Bearer realm=`, `Bearer`, `bEaReR a="\`, `Negotiate`, "Bearer realm=\"http://[::1\"", `Bearer realm="%zz"`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, challenge string) {
		if strings.Contains(challenge, "//") && !strings.Contains(challenge, "127.0.0.1") && !strings.Contains(challenge, "169.254.") {
			return // nothing out there is asked
		}
		c, err := registry.New(registry.Options{Host: s.Host, Username: "robot", Password: "hunter2", RetryBudget: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s.Faults.Clear()
		s.Faults.Forget()
		s.Faults.Add(testenv.Rule{Path: "/v2/", Effect: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header()["Www-Authenticate"] = []string{challenge}
			w.WriteHeader(http.StatusUnauthorized)
		}})
		_, err = c.Resolve(t.Context(), s.Reference("line/state"), "t")
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Resolve against %q = %v", challenge, err)
		}
	})
}

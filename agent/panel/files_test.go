package panel

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

const someHash = "$2a$04$9iXcpNYH7U3S6i7Pst6/buP9HBYDlWnFEZ0DwMXGC/AyLo4K0NTgi"

func TestPINFile(t *testing.T) {
	tests := map[string]struct {
		text string
		mode os.FileMode
		want string // of the error; "": it can be read
	}{
		"htpasswd's":  {"ana:$2y" + someHash[3:] + "\r\n\nBo Öz:" + someHash + " \n# none\n", 0o600, ""},
		"readable":    {"ana:" + someHash, 0o640, "mode 0640, others may read it"},
		"empty":       {"# nobody\n", 0o600, "names nobody"},
		"plain":       {"\nana:481592\n", 0o600, "pins:2:1: has no hash of bcrypt"},
		"MD5":         {"ana:$apr1$ZjTqBB3f$IF9gdYAGlMrs2fuINjHsz.", 0o600, "no hash of bcrypt"},
		"longer":      {"ana:" + someHash + "x", 0o600, "no hash of bcrypt"},
		"expensive":   {"ana:$2a$31" + someHash[6:], 0o600, "cost 31, more than 14"},
		"twice":       {"ana:" + someHash + "\nana:" + someHash, 0o600, "pins:2:1: names somebody twice"},
		"no name":     {":" + someHash, 0o600, "the name is empty"},
		"control":     {"a\x01:" + someHash, 0o600, "control character"},
		"no colon":    {"ana", 0o600, "is not a line name:hash"},
		"all at once": {"x\ny\n", 0o600, "pins:2:1"},
		"too many": {func() (s string) {
			for i := range maxPeople + 1 {
				s += fmt.Sprintf("p%d:%s\n", i, someHash)
			}
			return s
		}(), 0o600, "201:1: is one person more than the 200"},
		"too large": {strings.Repeat("#", maxPINFile+1), 0o600, "too large"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pins")
			if err := os.WriteFile(file, []byte(tc.text), tc.mode); err != nil {
				t.Fatal(err)
			}
			all, err := ReadPINs(file)
			switch {
			case tc.want == "" && (err != nil || len(all) != 2):
				t.Errorf("ReadPINs = %v, %v", all, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "481592")):
				t.Errorf("ReadPINs = %v, want %q", err, tc.want)
			}
		})
	}
	line, err := NewPIN("ana", "481592")
	if err != nil {
		t.Fatal(err)
	}
	all, err := parsePINs("pins", []byte(line))
	if err != nil || all.check("ana", "481592") == nil || all.check("ana", "481593") != nil || all.check("bo", "481592") != nil {
		t.Errorf("NewPIN = %q, %v", line, err)
	}
	for _, pin := range []string{"12345", strings.Repeat("1", 73)} {
		if line, err := NewPIN("ana", pin); err == nil {
			t.Errorf("NewPIN of %d characters = %q", len(pin), line)
		}
	}
}

func TestMessages(t *testing.T) {
	base, err := English()
	if err != nil {
		t.Fatal(err)
	}
	de, err := ReadMessages("testdata/de.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if de.Lang != "de" || de.Text("held", "name", "{generation}", "generation", 7) != "{generation} hält das Gerät bei Generation 7." {
		t.Errorf("German: %q", de.Text("held", "name", "{generation}", "generation", 7))
	}
	if data, err := os.ReadFile("testdata/de.yaml"); err != nil || strings.Count(string(data), "\n") != len(base.text)+1 {
		t.Errorf("the German example is not complete: %v", err)
	}
	for text, want := range map[string]string{
		"reject: nein\n":                             "",
		`{"lang": "pt-BR", "reject": "não"}`:         "",
		"rejekt: nein\n":                             "de.yaml:1:",
		"approve: ja\nrejekt: nein\n":                "is no text of the page",
		"held: \"{name} hält\"\n":                    "has the placeholders [{name}], want [{generation} {name}]",
		"reject: \"{name} lehnt ab\"\n":              "has the placeholders [{name}], want []",
		"lang: \"de\\\" onload=x\"\n":                "not a language",
		"reject: [a]\n":                              "de.yaml:1:9",
		"- a\n":                                      "mapping",
		"reject: ''\n":                               "reject",
		"reject: " + strings.Repeat("x", 501) + "\n": "501 bytes",
	} {
		m, err := parseMessages("de.yaml", []byte(text), base)
		switch {
		case want == "" && (err != nil || m.Text("approve") != "Approve" || m.Text("reject") == "Reject"):
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Every text that is used is there, and every text is used.
func TestMessagesAreUsed(t *testing.T) {
	base, err := English()
	if err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, name := range sources {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:Text\(|[. ]t\(|verdict\("[a-z]*", |form\(|actions\("[a-z]*", |reasonField\("[a-z]*", |other\()"([a-z.0-9]+)"`).FindAllStringSubmatch(string(data), -1) {
			if used[m[1]] = true; base.text[m[1]] == "" && !strings.HasSuffix(name, "_test.go") && m[1] != "result." {
				t.Errorf("%s uses %q, which en.yaml lacks", name, m[1])
			}
		}
	}
	for key := range base.text {
		group, _, _ := strings.Cut(key, ".")
		if !used[key] && !strings.Contains(" kind phase state postpone result waits ", " "+group+" ") {
			t.Errorf("nothing uses %q", key)
		}
	}
}

func FuzzParsePINs(f *testing.F) {
	f.Add([]byte("ana:" + someHash + "\n"))
	f.Add([]byte("# x\r\n:\nana:481592\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := parsePINs("pins", data)
		if err != nil {
			if strings.Contains(err.Error(), "$2") {
				t.Errorf("the error has a hash: %v", err)
			}
			return
		}
		var again strings.Builder
		for _, p := range all {
			if cost, err := bcrypt.Cost([]byte(p.hash)); err != nil || cost > maxCost || p.name == "" {
				t.Errorf("took %q with cost %d, %v", p.name, cost, err)
			}
			again.WriteString(p.name + ":" + p.hash + "\n")
		}
		if same, err := parsePINs("pins", []byte(again.String())); err != nil || len(same) != len(all) {
			t.Errorf("written again: %v, %v", same, err)
		}
	})
}

func FuzzParseMessages(f *testing.F) {
	f.Add([]byte("lang: de\nreject: nein\n"))
	f.Add([]byte(`{"held": "{name} {generation}"}`))
	base, err := English()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseMessages("x.yaml", data, base)
		if err != nil {
			return
		}
		if len(m.text) != len(base.text) || !languageTag.MatchString(m.Lang) {
			t.Errorf("took %d texts of %d, language %q", len(m.text), len(base.text), m.Lang)
		}
		for key, text := range m.text {
			if text == "" || len(text) > maxMessage || strings.Join(placeholders(text), "") != strings.Join(placeholders(base.text[key]), "") {
				t.Errorf("took %s: %q", key, text)
			}
		}
	})
}

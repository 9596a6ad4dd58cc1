// Command toolbox is what test containers run: one small static program that behaves as its arguments say, so that images
// need no shell.
//
//	toolbox serve PORT [TEXT]     HTTP server: / answers TEXT (or $TEXT, or the hostname), /env the environment,
//	                              /file?path= a file, /get?url= what another server answers, /resolve?name= its addresses,
//	                              /exit?code= ends the process, /health answers 200 until /sicken, 503 until /heal;
//	                              with SICK=1 in the environment it begins sick
//	toolbox udp PORT [TEXT]       UDP server: answers every packet with TEXT (or what came)
//	toolbox sleep [SECONDS]       waits, forever without SECONDS; ends at SIGTERM
//	toolbox stubborn              waits forever and ignores SIGTERM
//	toolbox exit CODE [SECONDS]   ends with a code, at once or later
//	toolbox write FILE TEXT       writes a file, appending a line
//	toolbox remove FILE           removes a file
//	toolbox cat FILE...           prints files
//	toolbox print TEXT            prints a line; toolbox print-err TEXT on stderr
//	toolbox lines N               prints N numbered lines
//	toolbox env                   prints environment, working directory, user, arguments
//	toolbox get URL [TEXT]        prints what a server answers; ends with 1 unless it is 2xx and has TEXT
//	toolbox ask HOST:PORT [TEXT]  asks a UDP server; ends with 1 unless the answer has TEXT
//	toolbox resolves NAME [ADDR]  ends with 0 when the name has addresses, among them ADDR
//	toolbox tcp HOST:PORT         ends with 0 when it accepts
//	toolbox exists FILE           ends with 0 when it is there
//	toolbox orphan                leaves a child without a parent, then waits forever
//	toolbox reads                 prints what comes on standard input, and waits for more
//	toolbox copy                  prints its standard input
//	toolbox stat FILE...          prints owner, group, mode and kind of files
//	toolbox open FILE [w]         opens a file for reading, or writing, and prints how that went
//	toolbox link FILE...          prints where links lead
//	toolbox mkdir DIR             makes a directory
//	toolbox size                  prints the size of its terminal, width and height, or that there is none
//	toolbox unshare               prints how a new user namespace went
//	toolbox touch-mib FILE MIB    writes a file of a size and prints the error, if any
//	toolbox memory MIB            takes memory and keeps it
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "toolbox:", err)
		os.Exit(1)
	}
}

// arg is the argument at i, or unset.
func arg(args []string, i int, unset string) string {
	if i < len(args) {
		return args[i]
	}
	return unset
}

func run(args []string) error {
	switch arg(args, 0, "") {
	case "serve":
		return serve(arg(args, 1, "8080"), arg(args, 2, os.Getenv("TEXT")))
	case "sleep":
		return wait(arg(args, 1, ""), true)
	case "stubborn":
		return wait("", false)
	case "exit":
		code, err := strconv.Atoi(arg(args, 1, "0"))
		if err != nil {
			return err
		}
		if len(args) > 2 {
			if err := wait(args[2], true); err != nil {
				return err
			}
		}
		os.Exit(code)
	case "write":
		f, err := os.OpenFile(arg(args, 1, ""), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(f, arg(args, 2, ""))
		return errors.Join(err, f.Sync(), f.Close())
	case "remove":
		return os.Remove(arg(args, 1, ""))
	case "cat":
		for _, name := range args[1:] {
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			os.Stdout.Write(data)
		}
	case "print":
		fmt.Println(arg(args, 1, ""))
	case "print-err":
		fmt.Fprintln(os.Stderr, arg(args, 1, ""))
	case "lines":
		n, err := strconv.Atoi(arg(args, 1, "1"))
		for i := range n {
			fmt.Printf("line %d\n", i+1)
		}
		return err
	case "env":
		fmt.Print(describe())
	case "get":
		text, err := get(arg(args, 1, ""))
		fmt.Print(text)
		if want := arg(args, 2, ""); err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("no %q in the answer", want)
		}
		return err
	case "udp":
		return serveUDP(arg(args, 1, "8080"), arg(args, 2, ""))
	case "ask":
		return ask(arg(args, 1, ""), arg(args, 2, ""))
	case "resolves":
		addrs, err := net.LookupHost(arg(args, 1, ""))
		fmt.Println(addrs)
		if want := arg(args, 2, ""); err == nil && want != "" && !slices.Contains(addrs, want) {
			err = fmt.Errorf("%s is not among %v", want, addrs)
		}
		return err
	case "orphan":
		return orphan()
	case "reads":
		_, err := io.Copy(os.Stdout, os.Stdin)
		return errors.Join(err, wait("", true))
	case "tcp":
		conn, err := net.DialTimeout("tcp", arg(args, 1, ""), 2*time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	case "exists":
		_, err := os.Stat(arg(args, 1, ""))
		return err
	case "memory":
		return hold(arg(args, 1, "1"))
	default:
		return look(args)
	}
	return nil
}

// look is what tests ask about a container from inside.
func look(args []string) error {
	switch arg(args, 0, "") {
	case "copy":
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	case "stat":
		for _, name := range args[1:] {
			info, err := os.Stat(name)
			if err != nil {
				return err
			}
			sys, _ := info.Sys().(*syscall.Stat_t)
			fmt.Println(sys.Uid, sys.Gid, info.Mode())
		}
	case "open":
		flag := os.O_RDONLY
		if arg(args, 2, "") == "w" {
			flag = os.O_WRONLY
		}
		f, err := os.OpenFile(arg(args, 1, ""), flag, 0)
		if err != nil {
			fmt.Println(errors.Unwrap(err))
			return nil
		}
		fmt.Println("ok")
		return f.Close()
	case "link":
		for _, name := range args[1:] {
			to, err := os.Readlink(name)
			if err != nil {
				return err
			}
			fmt.Println(to)
		}
	case "mkdir":
		return os.Mkdir(arg(args, 1, ""), 0o755)
	case "size":
		fmt.Println(terminal())
	case "unshare":
		fmt.Println(syscall.Unshare(syscall.CLONE_NEWUSER))
	case "touch-mib":
		return fill(arg(args, 1, ""), arg(args, 2, "1"))
	default:
		return fmt.Errorf("no such behaviour: %q", args)
	}
	return nil
}

// terminal is the size of the terminal on standard output.
func terminal() string {
	var size [4]uint16
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, 1, syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size[0])))
	if errno != 0 {
		return errno.Error()
	}
	return fmt.Sprintf("%dx%d", size[1], size[0])
}

func fill(name, mib string) error {
	n, err := strconv.Atoi(mib)
	if err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	for range n {
		if _, err := f.Write(make([]byte, 1<<20)); err != nil {
			fmt.Println(errors.Unwrap(err))
			return f.Close()
		}
	}
	fmt.Println("ok")
	return f.Close()
}

// wait ends after seconds, "" is never, or at SIGTERM when polite.
func wait(seconds string, polite bool) error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGINT)
	var after <-chan time.Time
	if seconds != "" {
		s, err := strconv.ParseFloat(seconds, 64)
		if err != nil {
			return err
		}
		after = time.After(time.Duration(s * float64(time.Second)))
	}
	for {
		select {
		case <-after:
			return nil
		case s := <-term:
			fmt.Println("got", s)
			if polite {
				return nil
			}
		}
	}
}

func hold(mib string) error {
	n, err := strconv.Atoi(mib)
	if err != nil {
		return err
	}
	held := make([]byte, n<<20)
	for i := 0; i < len(held); i += 4096 {
		held[i] = 1
	}
	fmt.Println("holding", len(held))
	err = wait("", true)
	held[0] = 2 // alive until here
	return err
}

func describe() string {
	wd, _ := os.Getwd()
	hostname, _ := os.Hostname()
	return fmt.Sprintf("%s\nwd=%s\nuser=%d:%d\nhostname=%s\nargs=%q\n", strings.Join(os.Environ(), "\n"), wd, os.Getuid(), os.Getgid(), hostname, os.Args)
}

func get(url string) (string, error) {
	client := &http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode/100 != 2 {
		err = errors.New(resp.Status)
	}
	return string(body), err
}

func serveUDP(port, text string) error {
	conn, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		return err
	}
	go func() { // ends with the process
		_ = wait("", true)
		_ = conn.Close()
	}()
	for buf := make([]byte, 1<<16); ; {
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		reply := buf[:n]
		if text != "" {
			reply = []byte(text)
		}
		if _, err := conn.WriteTo(reply, from); err != nil {
			fmt.Fprintln(os.Stderr, "toolbox:", err)
		}
	}
}

func ask(server, want string) error {
	conn, err := net.Dial("udp", server)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		return err
	}
	buf := make([]byte, 1<<16)
	n, err := conn.Read(buf)
	fmt.Println(string(buf[:n]))
	if err == nil && !strings.Contains(string(buf[:n]), want) {
		err = fmt.Errorf("no %q in the answer", want)
	}
	return err
}

// orphan starts a child that starts another and ends: the grandchild's end is for the first process to see.
func orphan() error {
	if os.Getenv("TOOLBOX_PARENT") != "" {
		self, err := os.StartProcess("/toolbox", []string{"/toolbox", "exit", "0"}, &os.ProcAttr{Env: []string{}})
		if err != nil {
			return err
		}
		fmt.Println("orphan", self.Pid)
		return self.Release()
	}
	child, err := os.StartProcess("/toolbox", []string{"/toolbox", "orphan"}, &os.ProcAttr{Env: []string{"TOOLBOX_PARENT=1"}, Files: []*os.File{nil, os.Stdout, os.Stderr}})
	if err != nil {
		return err
	}
	if _, err := child.Wait(); err != nil {
		return err
	}
	return wait("", true)
}

func serve(port, text string) error {
	if text == "" {
		text, _ = os.Hostname()
	}
	answer := func(w http.ResponseWriter, text string, err error) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		_, _ = io.WriteString(w, text)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { answer(w, text+"\n", nil) })
	mux.HandleFunc("GET /env", func(w http.ResponseWriter, _ *http.Request) { answer(w, describe(), nil) })
	mux.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) {
		data, err := os.ReadFile(r.FormValue("path"))
		answer(w, string(data), err)
	})
	mux.HandleFunc("GET /get", func(w http.ResponseWriter, r *http.Request) {
		body, err := get(r.FormValue("url"))
		answer(w, body, err)
	})
	mux.HandleFunc("GET /resolve", func(w http.ResponseWriter, r *http.Request) {
		addrs, err := net.LookupHost(r.FormValue("name"))
		answer(w, strings.Join(addrs, "\n"), err)
	})
	mux.HandleFunc("GET /log", func(w http.ResponseWriter, r *http.Request) { // answers when n lines are written, to both outputs in turn
		n, err := strconv.Atoi(r.FormValue("n"))
		for i := range n {
			_, werr := fmt.Fprintf([]*os.File{os.Stdout, os.Stderr}[i%2], "%s %d\n", r.FormValue("text"), i+1)
			err = errors.Join(err, werr)
		}
		answer(w, "logged\n", err)
	})
	mux.HandleFunc("GET /exit", func(_ http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.FormValue("code"))
		os.Exit(code)
	})
	var sick atomic.Bool
	sick.Store(os.Getenv("SICK") == "1")
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if sick.Load() {
			http.Error(w, "sick", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /sicken", func(http.ResponseWriter, *http.Request) { sick.Store(true) })
	mux.HandleFunc("GET /heal", func(http.ResponseWriter, *http.Request) { sick.Store(false) })
	server := &http.Server{Addr: ":" + port, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 1)
	go func() { // ends with the process
		_ = wait("", true)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		ended <- server.Shutdown(ctx) // what was asked is answered
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

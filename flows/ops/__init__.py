"""One way to start any server of cpb: `serving.serve` runs an application in its own process, behind the guard.

listeners        the table of servers: what each answers without a password, and its headers
serving          `serve`: port, guard, log, end on a signal
guard            Host, Origin, password (one-time code and cookie, or Basic), limits of websockets that have not signed
                 in, and headers, before every request
password_file    a password in a file for its owner alone
tracking_server  `cpb tracking-server`
ui               `cpb ui`
"""
